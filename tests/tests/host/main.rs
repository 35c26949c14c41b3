//! Tests that open no GPU, in one program, which is linked once.

mod cost_model;
mod interop;
mod networks;
