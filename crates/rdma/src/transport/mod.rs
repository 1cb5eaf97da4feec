//! Queue pairs, and the protocol between two of them.
