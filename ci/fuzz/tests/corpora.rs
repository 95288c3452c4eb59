//! Replays everything that the fuzzer found worth keeping, and some neighbours of each: bytes changed, cut and doubled.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use overtake_base::random::Random;
use overtake_fuzz::TARGETS;
use std::path::Path;

/// Neighbours of each input.
const NEIGHBOURS: u64 = 40;

#[test]
fn every_input_of_the_corpora_is_survived() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, target) in TARGETS {
        let folder = corpora.join(name);
        let mut inputs: Vec<_> = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}; each target has a corpus", folder.display()))
            .map(|file| file.unwrap().path())
            .collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "the corpus of {name} is empty");
        let mut random = Random::new(1, name);
        for path in inputs {
            let input = std::fs::read(&path).unwrap();
            println!("{}", path.display());
            target(&input);
            (0..NEIGHBOURS).for_each(|_| target(&neighbour(&input, &mut random)));
        }
    }
}

fn neighbour(input: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.next_u64() as u8),
            2 => bytes.extend_from_within(..at.min(64)),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
    bytes
}

#[test]
fn every_corpus_has_a_target() {
    for folder in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")).unwrap() {
        let name = folder.unwrap().file_name().into_string().unwrap();
        let off = !cfg!(feature = "http") && name.starts_with("http");
        let known = overtake_fuzz::target(&name).is_some() || off;
        assert!(known, "corpus/{name} is of no target");
    }
}
