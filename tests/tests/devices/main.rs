//! Tests of the library on every device that the machine has, in one program, which is linked once.

mod errors;
mod selection;
mod several;
mod sorting;
