//! (see DESIGN)
