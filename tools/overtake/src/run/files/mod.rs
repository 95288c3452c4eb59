//! `overtake inspect layout`, `headers`, `records`, `checkpoints`, `verify` and `export`: a data folder without a server.
//! Everything only reads, and reads on behind damage.

mod export;
mod folder;
mod shown;
mod verify;

use crate::cli::Format;
use crate::cli::inspect::{DataArgs, InspectCommand};
use crate::exit::{Exit, Failure, Outcome};
use crate::screen::Screen;
use folder::DataFolder;
use overtake_device::FolderError;

/// Runs one of them.
pub fn run(command: InspectCommand) -> Outcome {
    let screen = Screen::new(Format::Table);
    match command {
        InspectCommand::Layout => {
            screen.print(&layout())?;
            Ok(Exit::Ok)
        }
        InspectCommand::Headers(args) => shown::headers(&open(&args)?, screen),
        InspectCommand::Records(args) => shown::records(&open(&args.data)?, args.shard, screen),
        InspectCommand::Checkpoints(args) => shown::checkpoints(&open(&args)?, screen),
        InspectCommand::Verify(args) => verify::run(&open(&args)?, screen),
        InspectCommand::Export(args) => export::run(&open(&args)?, screen),
    }
}

fn open(args: &DataArgs) -> Result<DataFolder, Failure> {
    DataFolder::open(&args.data).map_err(|error| {
        let hint = match &error {
            FolderError::InUse { .. } => "; stop it first, or look at a copy",
            _ => "",
        };
        Failure::new(Exit::Server, format!("{error}{hint}"))
    })
}

/// Every size and offset of what is in a data folder.
fn layout() -> String {
    overtake_device::store_layout() + &overtake_log::layout()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_layout_is_the_golden_one() {
        let identity = "\
identity of a data folder, version 2, 48 bytes
    0   8 magic
    8   2 format
   10   2 cores
   12   2 shards
   14   2 zero
   16  16 store
   32   8 journals
   40   8 checksum
";
        let files = include_str!("../../../../../engine/log/src/layout.golden");
        assert_eq!(super::layout(), format!("{identity}{files}"));
    }
}
