//! All of them in one program, which is linked once, and whose tests run beside one another. With `--cfg loom` it has the models and
//! nothing else.

mod budget;
mod loom;
mod loom_lines;
mod loom_stream;
mod loom_virtio;
