//! The scrub reads everything that is needed, finds what was changed, and says where; it may go on beside everything else.

use super::world::{World, sealed};
use crate::disk::BLOCK_BYTES;
use crate::{JournalError, Scrubbed};

/// One pass over the journal.
fn scrub(world: &mut World) -> Vec<Scrubbed> {
    let mut pieces = Vec::new();
    loop {
        let mut out = Vec::new();
        if !world.journal.scrub(&mut out) {
            return pieces;
        }
        world.disk.submit(&mut out);
        while !world.disk.pending.is_empty() {
            pieces.extend(world.complete_one().and_then(|completed| completed.scrubbed));
        }
    }
}

#[test]
fn a_changed_byte_of_a_live_batch_is_found_and_named() {
    let (mut found, mut harmless) = (0, 0);
    for seed in 0..12 {
        let mut world = sealed(seed);
        let clean = scrub(&mut world);
        assert!(clean.len() > 3 && clean.iter().all(|piece| piece.damage.is_none()), "{clean:?}");
        let files = world.segment_files();
        let mut random = world.random.clone();
        for _ in 0..60 {
            let file = files[random.below(files.len() as u64) as usize];
            let length = world.disk.files[&file].len() as u64;
            let (at, bit) = (random.below(length), 1 << random.below(8));
            world.flip(file, at, bit);
            let pieces = scrub(&mut world);
            world.flip(file, at, bit);
            let damage: Vec<&JournalError> =
                pieces.iter().filter_map(|piece| piece.damage.as_ref()).collect();
            match damage[..] {
                [] => harmless += 1,
                [JournalError::Damaged { file: named, offset, .. }] => {
                    assert!(
                        *named == file && *offset <= at && at >= BLOCK_BYTES as u64,
                        "{named} {offset} {at}"
                    );
                    found += 1;
                }
                ref other => panic!("{other:?}"),
            }
        }
    }
    assert!(found > 30 && harmless > 30, "{found} {harmless}");
}

#[test]
fn it_goes_on_beside_everything_else() {
    let mut pieces = 0;
    for seed in 0..20 {
        let mut world = World::new(seed);
        let mut scrubbing = false;
        for _ in 0..400 {
            if world.random.below(10) == 0 && !scrubbing {
                let mut out = Vec::new();
                scrubbing = world.journal.scrub(&mut out);
                world.disk.submit(&mut out);
            }
            world.step();
            for Scrubbed { damage, .. } in world.scrubbed.drain(..) {
                scrubbing = false;
                assert_eq!(damage, None, "seed {seed}");
                pieces += 1;
            }
        }
    }
    assert!(pieces > 100, "{pieces}");
}
