//! The configuration file of a server.

use overtake_config::{ConfigFile, text};

/// Any text is either taken or refused with one line that names a line of the file; secrets are never shown.
pub(crate) fn file(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match ConfigFile::parse(&text) {
        Ok(file) => {
            let shown = format!("{file:?}");
            for token in file.tokens.iter().map(|token| token.token.get_ref()) {
                // Shorter ones stand in other words by chance.
                assert!(token.len() < 24 || !shown.contains(token.as_str()), "the secret is shown");
            }
        }
        Err(wrong) => {
            let lines = 1 + text.matches('\n').count();
            assert!((1..=lines).contains(&wrong.line), "line {} of {lines}", wrong.line);
            assert!(!wrong.message.is_empty() && !wrong.message.contains('\n'), "{:?}", wrong.message);
        }
    }
    // The same texts on the command line.
    let _ = (text::node_id(&text), text::zone(&text), text::host_and_port(&text), text::peer(&text));
}
