//! Tests of the agent.

mod switch;
mod wire;
