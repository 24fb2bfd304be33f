#include "emit/cuda/cubin.h"

#include <elf.h>

#include <cstring>
#include <regex>

#include "support/error.h"

namespace trainc::emit::cuda {
namespace {

// Attributes of .nv.info, as cuobjdump prints their names.
constexpr uint8_t kFormatWord = 4;  // a 16-bit size and so many bytes follow
constexpr uint8_t kRegisterCount = 0x2f, kFrameSize = 0x11;

template <class T> T read(const std::vector<uint8_t>& bytes, size_t at) {
  require(at + sizeof(T) <= bytes.size(), "cubin: truncated");
  T v;
  std::memcpy(&v, bytes.data() + at, sizeof(T));
  return v;
}

}  // namespace

Resources resources_of(const std::vector<uint8_t>& cubin, const std::string& kernel, const std::string& log) {
  const auto header = read<Elf64_Ehdr>(cubin, 0);
  require(std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_ident[EI_CLASS] == ELFCLASS64,
          "cubin: not an ELF file");
  auto section = [&](size_t i) { return read<Elf64_Shdr>(cubin, header.e_shoff + i * header.e_shentsize); };
  const Elf64_Shdr names = section(header.e_shstrndx);
  auto text_at = [&](size_t at) {
    require(at < cubin.size(), "cubin: a name outside the file");
    const char* start = reinterpret_cast<const char*>(cubin.data()) + at;
    return std::string(start, strnlen(start, cubin.size() - at));
  };
  Resources r;
  bool found = false;
  Elf64_Shdr symbols{}, info{};
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr s = section(i);
    const std::string name = text_at(names.sh_offset + s.sh_name);
    if (s.sh_type == SHT_SYMTAB) symbols = s;
    if (name == ".nv.info") info = s;
    if (name == ".nv.shared." + kernel) r.shared_bytes = static_cast<int64_t>(s.sh_size);
  }
  require(symbols.sh_size > 0 && info.sh_size > 0, "cubin: no symbols, or no .nv.info");
  const Elf64_Shdr strings = section(symbols.sh_link);
  for (size_t at = info.sh_offset; at + 4 <= info.sh_offset + info.sh_size;) {
    const uint8_t format = cubin.at(at), attribute = cubin.at(at + 1);
    const auto size = read<uint16_t>(cubin, at + 2);
    if (format == kFormatWord && size >= 8 && (attribute == kRegisterCount || attribute == kFrameSize)) {
      const auto symbol = read<Elf64_Sym>(cubin, symbols.sh_offset + read<uint32_t>(cubin, at + 4) * sizeof(Elf64_Sym));
      if (text_at(strings.sh_offset + symbol.st_name) == kernel) {
        const auto value = read<uint32_t>(cubin, at + 8);
        if (attribute == kRegisterCount) r.registers = static_cast<int>(value), found = true;
        else r.stack_bytes = value;
      }
    }
    at += 4 + (format == kFormatWord ? size : 0u);
  }
  require(found, "cubin: no kernel " + kernel);
  static const std::regex spill("([0-9]+) bytes spill (stores|loads)");
  for (std::sregex_iterator it(log.begin(), log.end(), spill), end; it != end; ++it)
    r.spill_bytes += std::stoll((*it)[1]);
  return r;
}

}  // namespace trainc::emit::cuda
