#include "measure/program.h"

#include <elf.h>
#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <optional>
#include <set>

#include "measure/system_file.h"

namespace longspan::measure {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kDeleted = " (deleted)";  // how /proc marks a file that has no name any more

template <class T>
bool read_at(std::ifstream& file, uint64_t offset, T& out) {
  file.seekg(static_cast<std::streamoff>(offset));
  return static_cast<bool>(file.read(reinterpret_cast<char*>(&out), sizeof(T)));
}

// The note of a PT_NOTE segment that the linker wrote with --build-id.
std::optional<std::string> build_id_note(std::string_view notes) {
  const auto padded = [](size_t size) { return (size + 3) / 4 * 4; };
  Elf64_Nhdr note;
  while (notes.size() >= sizeof(note)) {
    std::memcpy(&note, notes.data(), sizeof(note));
    const size_t name_at = sizeof(note);
    const size_t id_at = name_at + padded(note.n_namesz);
    const size_t end = id_at + padded(note.n_descsz);
    if (end > notes.size()) return std::nullopt;
    if (note.n_type == NT_GNU_BUILD_ID && notes.substr(name_at, 3) == "GNU") {
      std::string hex;
      for (const char byte : notes.substr(id_at, note.n_descsz))
        hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
      return hex;
    }
    notes.remove_prefix(end);
  }
  return std::nullopt;
}

std::optional<std::string> build_id(std::ifstream& file) {
  constexpr size_t kMaxNoteBytes = 1 << 16;
  Elf64_Ehdr header;
  if (!read_at(file, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64)
    return std::nullopt;
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!read_at(file, header.e_phoff + i * sizeof(segment), segment)) return std::nullopt;
    if (segment.p_type != PT_NOTE || segment.p_filesz > kMaxNoteBytes) continue;
    std::string notes(segment.p_filesz, '\0');
    file.seekg(static_cast<std::streamoff>(segment.p_offset));
    if (!file.read(notes.data(), static_cast<std::streamsize>(notes.size()))) return std::nullopt;
    if (auto id = build_id_note(notes)) return id;
  }
  return std::nullopt;
}

std::string content_hash(std::ifstream& file) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, 64 bits
  file.clear();
  file.seekg(0);
  char piece[1 << 16];
  while (file.read(piece, sizeof(piece)), file.gcount() > 0)
    for (std::streamsize i = 0; i < file.gcount(); ++i)
      hash = (hash ^ static_cast<unsigned char>(piece[i])) * 0x100000001b3;
  return fmt::format("fnv1a:{:016x}", hash);
}

// "libdnnl.so.2" leads to "libdnnl.so.2.6": that has "2.6".
std::string library_version(const fs::path& file) {
  std::error_code error;
  const fs::path real = fs::canonical(file, error);
  const std::string name = (error ? file : real).filename().string();
  constexpr std::string_view kMark = ".so.";
  const size_t at = name.find(kMark);
  return at == std::string::npos ? "" : name.substr(at + kMark.size());
}

// Files that a process has mapped to execute, but for its own. A line ends in "r-xp offset device inode
// path".
std::vector<Library> libraries_in(const fs::path& root, std::string_view maps, const std::string& own) {
  std::vector<Library> libraries;
  std::set<std::string> seen;
  for (const std::string_view line : lines_of(maps)) {
    const auto words = words_of(line);
    const size_t slash = line.find('/');
    if (words.size() < 6 || words[1].find('x') == std::string_view::npos || slash == std::string_view::npos)
      continue;
    Library library{.path = std::string(line.substr(slash))};
    if (library.path.ends_with(kDeleted)) {
      library.replaced = true;
      library.path.resize(library.path.size() - kDeleted.size());
    }
    if (library.path == own || library.path.find(".so") == std::string::npos) continue;
    if (!seen.insert(library.path).second) continue;
    library.version = library_version(below(root, library.path));
    libraries.push_back(std::move(library));
  }
  return libraries;
}

}  // namespace

std::string build_hash(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return "";
  std::ifstream file(path, std::ios::binary);
  if (!file) return "";
  if (const auto id = build_id(file)) return *id;
  return content_hash(file);
}

Program read_program(const fs::path& root, const std::string& process) {
  const fs::path folder = below(root, "proc/" + process);
  Program program;
  std::error_code error;
  program.path = fs::read_symlink(folder / "exe", error).string();
  if (error) return program;
  const std::string stat = read_system_file_or_empty(folder / "stat");
  program.pid = integer_of(stat).value_or(0);
  if (program.path.ends_with(kDeleted)) {
    program.replaced = true;
    program.path.resize(program.path.size() - kDeleted.size());
  }
  // Opened through /proc, this is the file that was started even when its name now belongs to another.
  program.hash = build_hash(folder / "exe");
  program.libraries = libraries_in(root, read_system_file_or_empty(folder / "maps"), program.path);
  return program;
}

}  // namespace longspan::measure
