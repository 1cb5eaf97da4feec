//! Whole frames: by hand (`frames`, `wrapped`), against `etherparse` with generated frames and all captures of the
//! collection (`judge`), against `tshark` what that does not know (`tshark`), and what holds for every frame (`properties`).

mod build;
mod captures;
mod frames;
mod judge;
mod properties;
mod tshark;
mod wrapped;
