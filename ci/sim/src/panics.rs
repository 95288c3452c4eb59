//! Panics of the code under test are findings like any other: they are caught, with their place, and printed by nobody.

use core::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `work`; an error says what it panicked with, and where.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if WATCHED.get() {
                SAID.set(Some(info.to_string().replace('\n', " ")));
            } else {
                before(info);
            }
        }));
    });
    WATCHED.set(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    WATCHED.set(false);
    result.map_err(|_| SAID.take().unwrap_or_else(|| "a panic without a word".into()))
}

#[cfg(test)]
mod tests {
    use super::caught;

    #[test]
    fn a_panic_is_caught_with_its_place() {
        assert_eq!(caught(|| 7), Ok(7));
        let said = caught(|| panic!("no {}", 8)).unwrap_err();
        assert!(said.contains("no 8") && said.contains("panics.rs"), "{said}");
    }
}
