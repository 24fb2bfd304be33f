// A look at CBOR before it is decoded. Includes: nothing.
#pragma once
#include <string_view>

namespace trainc::plan {

/// Whether `bytes` are one CBOR item as `save` writes them: lengths given, no tags, nested at most as deeply as a plan
/// is, nothing behind it. The decoder calls itself for every level, also for strings made of strings, so that a file
/// may ask for more stack than there is.
bool is_flat_cbor(std::string_view bytes);

}  // namespace trainc::plan
