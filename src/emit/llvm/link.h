// An ELF object in memory -> one blob: .text and .rodata side by side, their references to each other resolved. No LLVM
// types here.
#pragma once
#include <string>
#include <string_view>

#include "emit/llvm/emit.h"

namespace trainc::emit {

/// Throws InternalError, naming the symbol, where the object needs anything from outside (a function of the C library,
/// a GOT entry), or an absolute address, which would tie the blob to a place.
Blob link(std::string_view object, const std::string& entry);

}  // namespace trainc::emit
