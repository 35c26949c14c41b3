//! Writing an index file: first the sections, then the header with the checksums of the written sections.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use memmap2::Mmap;

use super::format::{self, HEADER, IN_MEMORY, Places, Section, Shape};
use crate::error::{Error, FileDefect, Result};
use crate::io::Watched;
use crate::io::checksum;
use crate::io::checksum::CHUNK;
use crate::{Watch, host_memory};

/// The content of a file. The lengths of all parts follow from the shape.
#[derive(Debug, Clone)]
pub(crate) struct Content<'a> {
    pub shape: Shape,
    pub centroids: &'a [f32],
    pub codebooks: &'a [f32],
    pub rotation: &'a [f32],
    /// Ids and codes of every list; the codes in as many slices as they have places in memory.
    pub lists: Vec<(&'a [u64], Vec<&'a [u8]>)>,
}

impl Content<'_> {
    /// Writes the file, which gets its name when it is complete. O(bytes).
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::BadFile`] if the index is too large for a mapped file; [`Error::Cancelled`].
    pub fn write(&self, path: &Path, watch: &Watch<'_>) -> Result<()> {
        let places = self.places().map_err(|defect| Error::BadFile { path: path.to_owned(), defect })?;
        crate::io::replace(path, |file| {
            let mut out = BufWriter::with_capacity(CHUNK, Watched::new(&mut *file, watch, length(&places) as usize));
            self.sections(&places, &mut out)?;
            out.flush()?;
            drop(out);
            // SAFETY: the file was created a moment ago under a name that nobody else has. Only the header is written
            // after this, once the mapping is dropped; the checksums, which read the mapping, do not read the header.
            let map = unsafe { Mmap::map(&*file) }?;
            let header = format::encode(&self.shape, &places, &checksums(&map, &places));
            drop(map);
            put_header(file, &header)
        })
    }

    /// The file as bytes in memory.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`].
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let path = || IN_MEMORY.into();
        let places = self.places().map_err(|defect| Error::BadFile { path: path(), defect })?;
        let mut bytes = host_memory::with_room(length(&places) as usize)?;
        self.sections(&places, &mut bytes).map_err(|source| Error::Io { path: path(), source })?;
        let header = format::encode(&self.shape, &places, &checksums(&bytes, &places));
        bytes[..HEADER].copy_from_slice(&header);
        Ok(bytes)
    }

    fn places(&self) -> Result<Places, FileDefect> {
        self.shape.places().ok_or(FileDefect::TooLarge { rows: self.shape.vectors, dim: self.shape.dim })
    }

    /// Writes room for the header, and then all sections.
    fn sections(&self, places: &Places, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&[0; HEADER])?;
        let mut end = HEADER as u64;
        for (section, place) in Section::ALL.into_iter().zip(places) {
            out.write_all(&[0; 64][..(place.start - end) as usize])?;
            match section {
                Section::Centroids => out.write_all(bytemuck::cast_slice(self.centroids))?,
                Section::Starts => {
                    let mut start = 0u64;
                    out.write_all(&start.to_le_bytes())?;
                    for (ids, _) in &self.lists {
                        start += ids.len() as u64;
                        out.write_all(&start.to_le_bytes())?;
                    }
                }
                Section::Ids => self.lists.iter().try_for_each(|(ids, _)| out.write_all(bytemuck::cast_slice(ids)))?,
                Section::Codes => {
                    self.lists.iter().flat_map(|(_, codes)| codes).try_for_each(|codes| out.write_all(codes))?
                }
                Section::Codebooks => out.write_all(bytemuck::cast_slice(self.codebooks))?,
                Section::Rotation => out.write_all(bytemuck::cast_slice(self.rotation))?,
            }
            end = place.end;
        }
        Ok(())
    }
}

/// Number of bytes of a file with these sections.
fn length(places: &Places) -> u64 {
    places.iter().map(|place| place.end).max().unwrap_or(HEADER as u64)
}

fn put_header(file: &mut File, header: &[u8; HEADER]) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    file.write_all(header)
}

/// The checksums of all sections of a file.
pub(super) fn checksums(bytes: &[u8], places: &Places) -> [u64; Section::ALL.len()] {
    places.clone().map(|place| checksum::of_bytes(&bytes[place.start as usize..place.end as usize]))
}
