//! Carries the disk operations of one core to io_uring on glommio, and owns the data folder: its lock, its identity,
//! and whether its file system can be trusted with direct writes. Decides nothing else.

mod blocking;
mod device;
mod direct;
mod error;
mod folder;
mod membership;
mod segments;
mod store;

pub use device::Device;
pub use direct::check_direct_io;
pub use error::FolderError;
pub use folder::{FolderLock, core_folder, kept_free_bytes, lock_folder, lock_folder_to_look};
pub use membership::{
    Membership, claim_folder, read_cluster, read_member, read_peers, write_cluster, write_peers,
};
pub use store::{
    SHARDS_DEFAULT, SHARDS_DEFAULT_CLUSTER, STORE_FORMAT, StoreIdentity, cores_of_machine, open_store,
    read_store, store_layout,
};
