//! Images of modules: PTX text, or machine code in ELF.

use std::ffi::{CStr, c_char, c_int};

use crate::calls::{INVALID_PTX, NO_BINARY_FOR_GPU};

/// `CUDA_ERROR_INVALID_IMAGE`.
const INVALID_IMAGE: c_int = 200;
/// The magic number of ELF.
const ELF: &[u8] = b"\x7fELF";
/// Bytes of the header of an ELF file, and of one section's.
const HEADER: usize = 64;
/// Number of CUDA among the machines of ELF.
const MACHINE: u16 = 190;
/// The instruction, in the low 12 bits of 16 bytes, that waits for the work ahead: `griddepcontrol.wait` in PTX. Every
/// kernel of the form that waits has it, and no other kernel of the library (ptxas 13.5; sm_90, sm_100 and sm_120).
const WAIT: u16 = 0x82e;

/// The parts of an image that the driver keeps.
#[derive(Debug, PartialEq, Eq)]
pub struct Image {
    pub entries: Vec<String>,
    /// Whether every kernel first waits for the work ahead of it, and PTX reads nothing by the path for what does not
    /// change.
    pub waits: bool,
    /// Bytes of static shared memory. Every entry counts those of all.
    pub static_shared: i32,
}

impl Image {
    /// Reads an image for a device of a compute capability.
    ///
    /// # Errors
    /// The driver's code for an image that it refuses.
    ///
    /// # Safety
    /// The image is text that ends with NUL, or an ELF file.
    pub unsafe fn read(image: *const c_char, capability: (i32, i32)) -> Result<Image, c_int> {
        // SAFETY: as the caller promises; text that begins like ELF has four bytes, too.
        let starts_as_elf = (0..ELF.len()).all(|at| unsafe { image.add(at).read() } as u8 == ELF[at]);
        if !starts_as_elf {
            // SAFETY: as the caller promises.
            return Self::of_ptx(unsafe { CStr::from_ptr(image) }.to_str().map_err(|_| INVALID_PTX)?, capability);
        }
        // SAFETY: an ELF file has its header.
        let header = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), HEADER) };
        let sections = number(header, 40, 8).ok_or(INVALID_IMAGE)?;
        let bytes = number(header, 60, 2).and_then(|count| count.checked_mul(HEADER)?.checked_add(sections));
        // SAFETY: the headers of sections follow the sections, so the file has as many bytes at least.
        Self::of_elf(unsafe { std::slice::from_raw_parts(image.cast(), bytes.ok_or(INVALID_IMAGE)?) }, capability)
    }

    fn of_ptx(text: &str, capability: (i32, i32)) -> Result<Image, c_int> {
        let entries = entries(text);
        // griddepcontrol and clusters need compute capability 9.0; an older device refuses the text.
        let later = text.contains("griddepcontrol") || text.contains("barrier.cluster");
        if entries.is_empty() || (later && capability < (9, 0)) {
            return Err(INVALID_PTX);
        }
        let waits = text.matches("griddepcontrol.wait;").count() == entries.len() && !text.contains("ld.global.nc");
        Ok(Image { entries, waits, static_shared: static_shared(text) })
    }

    fn of_elf(file: &[u8], capability: (i32, i32)) -> Result<Image, c_int> {
        let sections = Section::all(file).ok_or(INVALID_IMAGE)?;
        if number(file, 18, 2) != Some(MACHINE.into()) {
            return Err(INVALID_IMAGE);
        }
        // The architecture is the second byte of the flags: 90 for sm_90.
        let arch = i32::from(file[49]);
        if (arch / 10, arch % 10) > capability || arch / 10 != capability.0 {
            return Err(NO_BINARY_FOR_GPU);
        }
        let with =
            |prefix| sections.iter().filter_map(move |section| Some((section.name.strip_prefix(prefix)?, section)));
        let waits = |code: &[u8]| {
            code.chunks_exact(16)
                .any(|instruction| u16::from_le_bytes([instruction[0], instruction[1]]) & 0xfff == WAIT)
        };
        Ok(Image {
            entries: with(".text.").map(|(entry, _)| entry.to_owned()).collect(),
            waits: with(".text.").all(|(_, section)| waits(section.data)),
            static_shared: with(".nv.shared.")
                .filter(|(entry, _)| !entry.starts_with("reserved."))
                .map(|(_, section)| section.bytes as i32)
                .sum(),
        })
    }
}

/// A section of an ELF file.
struct Section<'a> {
    name: &'a str,
    /// Empty for a section of zeros, which the file does not have.
    data: &'a [u8],
    bytes: usize,
}

impl<'a> Section<'a> {
    /// All sections; `None` if a number leads out of the file.
    fn all(file: &'a [u8]) -> Option<Vec<Self>> {
        let (start, count) = (number(file, 40, 8)?, number(file, 60, 2)?);
        let header = |at: usize| file.get(start.checked_add(at * HEADER)?..)?.get(..HEADER);
        let place = |header: &[u8]| Some((number(header, 24, 8)?, number(header, 32, 8)?));
        let data = |header: &[u8]| {
            let (start, bytes) = place(header)?;
            file.get(start..start.checked_add(bytes)?)
        };
        let names = data(header(number(file, 62, 2)?)?)?;
        let section = |at| {
            let header = header(at)?;
            let name = names.get(number(header, 0, 4)?..)?;
            let name = CStr::from_bytes_until_nul(name).ok()?.to_str().ok()?;
            // SHT_NOBITS
            let data = if number(header, 4, 4)? == 8 { &[] } else { data(header)? };
            Some(Section { name, data, bytes: place(header)?.1 })
        };
        (0..count).map(section).collect()
    }
}

/// The unsigned number of `bytes` bytes at a place.
fn number(file: &[u8], at: usize, bytes: usize) -> Option<usize> {
    let digits = file.get(at..at.checked_add(bytes)?)?;
    digits.iter().rev().try_fold(0usize, |number, &digit| number.checked_mul(256)?.checked_add(digit.into()))
}

/// Bytes of the shared arrays that PTX text declares, such as `.shared .align 16 .b8 counts[128];`. The array for
/// dynamic memory has no length and does not count.
fn static_shared(ptx: &str) -> i32 {
    let arrays = ptx.split(".shared ").skip(1).filter_map(|rest| {
        let declaration = rest.split_once(';')?.0;
        let (kind, length) = declaration.strip_suffix(']')?.rsplit_once('[')?;
        let element = kind.split_whitespace().find_map(|word| word.strip_prefix(".b"))?;
        Some(element.parse::<i32>().ok()? / 8 * length.parse::<i32>().ok()?)
    });
    arrays.sum()
}

/// The names of the entries of PTX text.
fn entries(ptx: &str) -> Vec<String> {
    let lines = ptx.lines().filter(|line| !line.trim_start().starts_with("//"));
    let names = lines.filter_map(|line| {
        let (_, rest) = line.split_once(".entry ")?;
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '$')).unwrap_or(rest.len());
        Some(rest[..end].to_owned())
    });
    names.filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file as ptxas writes it, in short: kernels with 32 bytes of shared memory each, of one instruction and perhaps
    /// one that waits.
    fn elf(arch: u8, kernels: &[(&str, bool)]) -> Vec<u8> {
        let (mut file, mut names, mut headers) = (vec![0; HEADER], vec![0], vec![0; HEADER]);
        let mut section = |name: &str, kind: u8, data: &[u8], bytes: u64| {
            let mut header = [0; HEADER];
            header[..4].copy_from_slice(&u32::try_from(names.len()).unwrap().to_le_bytes());
            header[4] = kind;
            header[24..32].copy_from_slice(&(file.len() as u64).to_le_bytes());
            header[32..40].copy_from_slice(&bytes.to_le_bytes());
            names.extend(name.bytes().chain([0]));
            file.extend_from_slice(data);
            headers.extend(header);
        };
        for &(name, waits) in kernels {
            let mut code = [0x47, 0x79].iter().copied().chain([0; 14]).collect::<Vec<u8>>();
            if waits {
                code.extend([0x2e, 0x78].into_iter().chain([0; 14]));
            }
            section(&format!(".text.{name}"), 1, &code, code.len() as u64);
            section(&format!(".nv.shared.{name}"), 8, &[], 32);
        }
        section(".nv.shared.reserved.0", 8, &[], 1024);
        let strings = names.clone();
        let mut header = [0; HEADER];
        header[4] = 3;
        header[24..32].copy_from_slice(&(file.len() as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(strings.len() as u64).to_le_bytes());
        file.extend(strings);
        headers.extend(header);
        let (at, count) = (file.len() as u64, u16::try_from(headers.len() / HEADER).unwrap());
        file.extend(headers);
        file[..4].copy_from_slice(ELF);
        file[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        file[40..48].copy_from_slice(&at.to_le_bytes());
        file[49] = arch;
        file[60..62].copy_from_slice(&count.to_le_bytes());
        file[62..64].copy_from_slice(&(count - 1).to_le_bytes());
        file
    }

    fn read(file: &[u8], capability: (i32, i32)) -> Result<Image, c_int> {
        // SAFETY: the tests pass whole ELF files and texts that end with NUL.
        unsafe { Image::read(file.as_ptr().cast(), capability) }
    }

    #[test]
    fn machine_code_has_entries_waits_and_shared_memory() {
        let image = |kernels: &[(&str, bool)]| read(&elf(90, kernels), (9, 0)).unwrap();
        let two = image(&[("one", true), ("two", true)]);
        assert_eq!((two.entries, two.waits, two.static_shared), (vec!["one".to_owned(), "two".to_owned()], true, 64));
        assert!(!image(&[("one", true), ("two", false)]).waits);
    }

    #[test]
    fn machine_code_is_for_the_later_devices_of_a_generation() {
        let codes = [(9, 0), (9, 3), (8, 9), (10, 0)].map(|capability| read(&elf(90, &[]), capability).err());
        assert_eq!(codes, [None, None, Some(NO_BINARY_FOR_GPU), Some(NO_BINARY_FOR_GPU)]);
        assert_eq!(read(&elf(103, &[]), (10, 0)).err(), Some(NO_BINARY_FOR_GPU));
        assert_eq!(read(&elf(120, &[]), (12, 1)).err(), None);
    }

    #[test]
    fn other_images_are_refused() {
        let mut other = elf(90, &[("one", false)]);
        other[18] = 62;
        assert_eq!(read(&other, (9, 0)).err(), Some(INVALID_IMAGE));
        let whole = elf(90, &[("one", false)]);
        for damage in [25, 33] {
            let mut file = whole.clone();
            // The place and the size of the first section.
            let header = number(&file, 40, 8).unwrap() + HEADER;
            file[header + damage] = 0xff;
            assert_eq!(read(&file, (9, 0)).err(), Some(INVALID_IMAGE), "{damage}");
        }
        for text in [&b"\0"[..], b"\x7f\0", b"no entry\0"] {
            assert_eq!(read(text, (9, 0)).err(), Some(INVALID_PTX));
        }
    }
}
