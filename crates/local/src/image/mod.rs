//! The image store: container images as overlay layers.
//!
//! An image comes from an OCI layout directory, an OCI or Docker archive, or a registry. Its layers
//! are unpacked once into a content-addressed store that all sandboxes share, in the form that an
//! **unprivileged** overlay (mount option `userxattr`) reads: a whiteout is a character device 0/0,
//! an opaque directory has the attribute `user.overlay.opaque`. Nothing an archive says is trusted:
//! every digest is checked while it streams, every path is resolved beneath the layer by the kernel,
//! and every size is bounded.
//!
//! ```text
//! reference ─► source (layout | archive | registry) ─► manifest, config
//!                  └─► blob ─► digest ─► decompress ─► diff id ─► tarball ─► unpack ─► layers/
//! ```

mod archive;
mod cancel;
mod config;
mod confine;
mod decompress;
mod digest;
mod garbage;
mod layer;
mod layout;
mod limits;
mod lock;
mod manifest;
mod metadata;
mod note;
mod owner;
mod pax;
mod platform;
mod record;
mod reference;
mod registry;
mod resolve;
mod source;
mod sparse;
mod store;
mod tarball;
mod temporary;
mod unpack;
mod whiteout;

pub use config::ImageConfig;
pub use digest::Digest;
pub use garbage::GarbageReport;
pub use limits::UnpackLimits;
pub use note::{NoteReason, UnpackNote, UnpackReport};
pub use owner::{OwnerMap, OwnerRange};
pub use platform::Platform;
pub use record::ImageSummary;
pub use registry::{CredentialSource, RegistryCredentials};
pub use resolve::{Image, PullPolicy, ResolveOptions};
pub use store::{ImageStore, ImageStoreOptions, InProcessUnpacker, LayerUnpacker};
pub use unpack::unpack_layer;
