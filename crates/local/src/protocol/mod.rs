//! What the host and pid 1 of a sandbox say to each other.
//!
//! Messages are typed, length-framed and may carry file descriptors (see [`frame`]). The host trusts
//! nothing that comes from pid 1 beyond its type; pid 1 talks to nobody but the host.

mod frame;
mod message;

pub(crate) use frame::{FrameReader, FrameWriter};
pub(crate) use message::{
    Ending, Event, EventBody, FileWork, FilesReply, FilesRequest, InnerUsers, KillCause, Lifetime, MountPlan,
    NetworkOwner, OverlayPlan, Refusal, Request, RequestBody, RunCommand, SharedTree, SignalTarget,
    StartFailure, StartPlan, StatRecord, Tag, TreeAccess, User,
};
