#include "emit/llvm/link.h"

#include <elf.h>

#include <cstring>
#include <vector>

#include "support/error.h"

namespace trainc::emit {
namespace {

// The parts of an ELF64 file that we read, every access within its bytes.
struct Object {
  std::string_view bytes;
  std::vector<Elf64_Shdr> sections;

  explicit Object(std::string_view b) : bytes(b) {
    const auto header = read<Elf64_Ehdr>(0);
    require(std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_machine == EM_X86_64,
            "link: not an x86-64 ELF object");
    for (int i = 0; i < header.e_shnum; ++i)
      sections.push_back(read<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr)));
    names = header.e_shstrndx;
  }
  template <class T> T read(uint64_t offset) const {
    require(offset + sizeof(T) <= bytes.size(), "link: truncated object");
    T t;
    std::memcpy(&t, bytes.data() + offset, sizeof(T));
    return t;
  }
  std::string text(uint64_t table, uint64_t offset) const {
    const uint64_t at = sections.at(table).sh_offset + offset;
    require(at < bytes.size(), "link: truncated object");
    return std::string(bytes.data() + at);  // tables end with a zero byte
  }
  std::string name(size_t section) const { return text(names, sections[section].sh_name); }
  uint64_t names = 0;
};

bool starts_with(const std::string& s, const char* prefix) { return s.rfind(prefix, 0) == 0; }

}  // namespace

Blob link(std::string_view bytes, const std::string& entry) {
  const Object object(bytes);
  Blob blob;
  // Where each kept section lies in the blob; -1: dropped (debug, notes, unwind tables: kernels never unwind).
  std::vector<int64_t> place(object.sections.size(), -1);
  for (size_t i = 0; i < object.sections.size(); ++i) {
    const Elf64_Shdr& s = object.sections[i];
    const std::string name = object.name(i);
    if (!(s.sh_flags & SHF_ALLOC) || s.sh_size == 0 || name == ".eh_frame") continue;
    require((starts_with(name, ".text") || starts_with(name, ".rodata")) && s.sh_type == SHT_PROGBITS &&
                !(s.sh_flags & SHF_WRITE),
            "link: section " + name + " has no place in a kernel");
    require(s.sh_addralign <= 64, "link: section " + name + " wants more than 64-byte alignment");
    require(s.sh_offset + s.sh_size <= bytes.size(), "link: truncated object");
    const uint64_t align = std::max<uint64_t>(s.sh_addralign, 1);
    blob.code.resize((blob.code.size() + align - 1) / align * align, 0xCC);
    place[i] = static_cast<int64_t>(blob.code.size());
    blob.code.insert(blob.code.end(), bytes.begin() + s.sh_offset, bytes.begin() + s.sh_offset + s.sh_size);
  }

  blob.entry = -1;
  for (const Elf64_Shdr& table : object.sections) {
    if (table.sh_type != SHT_SYMTAB) continue;
    for (uint64_t at = 0; at < table.sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = object.read<Elf64_Sym>(table.sh_offset + at);
      if (symbol.st_shndx < place.size() && place[symbol.st_shndx] >= 0 &&
          object.text(table.sh_link, symbol.st_name) == entry)
        blob.entry = place[symbol.st_shndx] + static_cast<int64_t>(symbol.st_value);
    }
  }
  require(blob.entry >= 0, "link: no symbol " + entry);

  for (const Elf64_Shdr& table : object.sections) {
    if (table.sh_type != SHT_RELA && table.sh_type != SHT_REL) continue;
    if (table.sh_info >= place.size() || place[table.sh_info] < 0) continue;
    require(table.sh_type == SHT_RELA, "link: a relocation without addend");
    const Elf64_Shdr& symbols = object.sections.at(table.sh_link);
    for (uint64_t at = 0; at < table.sh_size; at += sizeof(Elf64_Rela)) {
      const auto r = object.read<Elf64_Rela>(table.sh_offset + at);
      const auto symbol = object.read<Elf64_Sym>(symbols.sh_offset + ELF64_R_SYM(r.r_info) * sizeof(Elf64_Sym));
      std::string name = object.text(symbols.sh_link, symbol.st_name);
      if (name.empty() && symbol.st_shndx < place.size()) name = object.name(symbol.st_shndx);
      const bool inside = symbol.st_shndx < place.size() && place[symbol.st_shndx] >= 0;
      const auto type = ELF64_R_TYPE(r.r_info);
      require(inside, entry + " refers to " + name + ", which is not in the kernel");
      require(type == R_X86_64_PC32 || type == R_X86_64_PLT32, entry + " needs a relocation of type " +
                                                                   std::to_string(type) + " to " + name +
                                                                   "; only PC-relative ones can be resolved");
      const int64_t where = place[table.sh_info] + static_cast<int64_t>(r.r_offset);
      const int64_t value = place[symbol.st_shndx] + static_cast<int64_t>(symbol.st_value) + r.r_addend - where;
      require(where >= 0 && where + 4 <= static_cast<int64_t>(blob.code.size()),
              "link: relocation outside its section");
      const auto narrow = static_cast<int32_t>(value);
      require(narrow == value, "link: kernel above 2 GB");
      std::memcpy(blob.code.data() + where, &narrow, 4);
    }
  }
  return blob;
}

}  // namespace trainc::emit
