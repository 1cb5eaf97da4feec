//! Keys, regions and windows: who may reach which bytes.
