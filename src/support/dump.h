// The files that TRAINC_DUMP asks for: one readable file a stage, in TRAINC_DUMP_DIR (./trainc-dump unless set).
#pragma once
#include <string>
#include <string_view>

namespace trainc {

/// Whether the environment's `variable`, a list with commas, holds `word`.
bool environment_lists(const char* variable, std::string_view word);
/// TRAINC_DUMP holds `what` ("graph", "loop", "asm", "plan").
inline bool dumping(std::string_view what) { return environment_lists("TRAINC_DUMP", what); }
std::string dump_directory();
/// Writes a file of that name (odd characters replaced) and gives its path; empty where it cannot be written.
std::string write_dump(std::string name, std::string_view text);

}  // namespace trainc
