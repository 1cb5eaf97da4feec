//! Tests of the agent.

mod again;
mod bounds;
mod captures;
mod removed;
mod switch;
mod wire;
