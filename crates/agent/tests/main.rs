//! Tests of the agent.

mod again;
mod bounds;
mod captures;
mod controllers;
mod crowd;
mod entries;
mod groups;
mod packets;
mod ports;
mod removed;
mod wire;
mod world;
