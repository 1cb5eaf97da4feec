//! Tests of the agent.

mod bounds;
mod captures;
mod switch;
mod wire;
