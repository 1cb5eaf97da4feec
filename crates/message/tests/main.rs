//! All of them in one program, which is linked once. With `--cfg loom` it has the models and nothing else.

#[cfg(not(loom))]
mod endpoint;
#[cfg(not(loom))]
mod explore;
#[cfg(not(loom))]
mod hostile;
#[cfg(not(loom))]
mod hosts;
#[cfg(not(loom))]
mod hosts_hostile;
#[cfg(not(loom))]
mod local;
mod loom;
#[cfg(not(loom))]
mod programs;
#[cfg(not(loom))]
mod world;
