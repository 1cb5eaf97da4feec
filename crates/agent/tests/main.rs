//! Tests of the agent.

mod captures;
mod switch;
mod wire;
