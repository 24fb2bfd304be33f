// Golden files: what a stage is expected to print, in tests/cpp/golden/<stage>/. `make golden` rewrites them; the
// difference is reviewed.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace trainc::test {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Compares `text` with tests/cpp/golden/<name>. With TRAINC_GOLDEN=rewrite, writes it there instead.
inline void expect_golden(const std::string& name, const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(TRAINC_TEST_DIR "/cpp/golden") / name;
  const char* mode = std::getenv("TRAINC_GOLDEN");
  if (mode != nullptr && std::string(mode) == "rewrite") {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return;
  }
  EXPECT_EQ(text, read_file(path)) << "expected: " << path << "; where the new text is right, `make golden` writes it";
}

}  // namespace trainc::test
