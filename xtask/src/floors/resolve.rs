//! Finds the modules and files that a path leads to.

use super::read::{ROOT, Reference, Tree};

/// The target of a path: the modules that it names, and the module of the definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The modules that the path itself names, from the outside in. Modules behind a re-export are not among them.
    pub named: Vec<usize>,
    /// The module that holds the definition.
    pub definition: usize,
}

/// The module or item for which a name stands.
#[derive(Debug, Clone, Copy)]
enum Place {
    Module(usize),
    /// An item that this module defines.
    Item(usize),
    /// Something of another crate.
    Outside,
}

impl Tree {
    /// The target of a reference: none if it names something of another crate, an error if the crate root has no such
    /// name.
    pub fn target(&self, reference: &Reference) -> Result<Option<Target>, String> {
        let mut named = Vec::new();
        Ok(match self.walk(reference.module, &reference.path, &mut named, &mut Vec::new())? {
            None | Some(Place::Outside) => None,
            Some(Place::Module(definition) | Place::Item(definition)) => Some(Target { named, definition }),
        })
    }

    /// Whether the path begins with an item that its module imports by name: the import says the same.
    pub fn repeats_an_import(&self, reference: &Reference, target: &Target) -> bool {
        let imports = &self.modules[reference.module].imports;
        target.named.is_empty() && imports.iter().any(|import| import.name.as_ref() == reference.path.first())
    }

    /// Follows `path` from `module`. `visited` holds the names that are being looked up, against imports in a circle.
    fn walk(
        &self,
        module: usize,
        path: &[String],
        named: &mut Vec<usize>,
        visited: &mut Vec<(usize, String)>,
    ) -> Result<Option<Place>, String> {
        let parent = |module: usize| self.modules[module].parent.unwrap_or(ROOT);
        let Some((head, rest)) = path.split_first() else { return Ok(None) };
        let mut place = match head.as_str() {
            "crate" => Place::Module(ROOT),
            "self" => Place::Module(module),
            "super" => Place::Module(parent(module)),
            name => match self.lookup(module, name, true, visited)? {
                Some(place) => place,
                None => return Ok(None),
            },
        };
        for segment in rest {
            let Place::Module(at) = place else { break };
            named.push(at);
            place = match segment.as_str() {
                "super" => Place::Module(parent(at)),
                name => match self.lookup(at, name, false, visited)? {
                    Some(place) => place,
                    None if at == ROOT => return Err(format!("the crate root has no {name}")),
                    // An item that a macro defines has no name in the source.
                    None => Place::Item(at),
                },
            };
        }
        if let Place::Module(at) = place {
            named.push(at);
        }
        Ok(Some(place))
    }

    /// The module or item for which `name` stands in `module`. `local`: names that functions import count too.
    fn lookup(
        &self,
        module: usize,
        name: &str,
        local: bool,
        visited: &mut Vec<(usize, String)>,
    ) -> Result<Option<Place>, String> {
        let key = (module, name.to_owned());
        if visited.contains(&key) {
            return Ok(None);
        }
        visited.push(key);
        let found = self.find(module, name, local, visited);
        visited.pop();
        found
    }

    fn find(
        &self,
        module: usize,
        name: &str,
        local: bool,
        visited: &mut Vec<(usize, String)>,
    ) -> Result<Option<Place>, String> {
        let content = &self.modules[module];
        if let Some(&child) = content.children.get(name) {
            return Ok(Some(Place::Module(child)));
        }
        if content.items.contains(name) {
            return Ok(Some(Place::Item(module)));
        }
        let imports = || content.imports.iter().filter(|import| local || !import.local);
        if let Some(import) = imports().find(|import| import.name.as_deref() == Some(name)) {
            let place = self.walk(module, &import.path, &mut Vec::new(), visited)?;
            return Ok(Some(place.unwrap_or(Place::Outside)));
        }
        for import in imports().filter(|import| import.name.is_none()) {
            if let Some(Place::Module(from)) = self.walk(module, &import.path, &mut Vec::new(), visited)?
                && let Some(place) = self.lookup(from, name, false, visited)?
            {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::super::read::{self, Sources};
    use super::*;

    /// The target of each reference of a.rs: the file of the definition, and how many modules the path names.
    fn targets(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Sources = files.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect();
        let tree = read::read(&sources).unwrap();
        let in_a = tree.references.iter().filter(|reference| tree.files[reference.file].path == "a.rs");
        let shown = |reference: &Reference| match tree.target(reference) {
            Ok(Some(Target { named, definition })) => {
                format!("{} {}", tree.files[tree.modules[definition].file].path, named.len())
            }
            Ok(None) => "outside".to_owned(),
            Err(error) => error,
        };
        in_a.map(shown).collect()
    }

    #[test]
    fn paths_lead_to_definitions() {
        let a = "
            use crate::Thing;
            use crate::{b::{self as renamed, Deep}, Global};
            use super::b::c;
            use std::mem;
            mod inner { fn f() { super::super::b::c::made_by_a_macro() } }
            fn g() { renamed::c::C; c::C; mem::swap(); Thing::new(); crate::Absent; Vec::new() }";
        let found = targets(&[
            ("lib.rs", "mod a; mod b; pub use b::Thing; pub use b::c::*;"),
            ("a.rs", a),
            ("b/mod.rs", "pub mod c; pub struct Thing; pub use self::c::Deep; pub use super::b::Deep as Circle;"),
            ("b/c.rs", "pub struct Deep; pub struct C; pub fn Global() {}"),
        ]);
        let expected = [
            "b/mod.rs 1", // crate::Thing
            "b/mod.rs 2", // crate::b
            "b/c.rs 2",   // crate::b::Deep, which b re-exports
            "b/c.rs 1",   // crate::Global, behind a glob
            "b/c.rs 3",
            "outside",
            "b/c.rs 4", // super::super::b::c::made_by_a_macro
            "b/c.rs 2", // renamed::c::C
            "b/c.rs 1", // c::C
            "outside",
            "b/mod.rs 0", // Thing::new
            "the crate root has no Absent",
            "outside",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn imports_in_a_circle_end() {
        let found = targets(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::Lost;"),
            ("b.rs", "pub use crate::c::Lost; pub use crate::c::*;"),
            ("c.rs", "pub use crate::b::Lost; pub use crate::b::*;"),
        ]);
        // Nothing defines the name, so the path leads to the module that it names.
        assert_eq!(found, ["b.rs 2"]);
    }
}
