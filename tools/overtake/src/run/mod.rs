//! What each command does.

mod lines;
mod process;
mod stop;

use crate::cli::{Command, Format};
use crate::exit::{Exit, Outcome};
use crate::screen::Screen;

/// Runs one command and says how it ended.
pub fn command(command: Command) -> Exit {
    let screen = Screen::new(Format::Table);
    let _ = command;
    let outcome: Outcome = Ok(Exit::Ok);
    match outcome {
        Ok(exit) => exit,
        Err(failure) => {
            screen.failure(&failure);
            failure.exit
        }
    }
}
