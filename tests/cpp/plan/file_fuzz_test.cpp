// Files of plans that somebody has changed. Where the checksum tells, every change is a UserError; where it was made to
// fit again, what is read is a UserError or a plan that verifies, prints and is saved like any other: never a crash,
// and nothing that a sanitizer objects to. TRAINC_STRESS=100000 sets how many mutations of each kind are tried.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "../common/plans.h"
#include "support/error.h"

namespace trainc::plan {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::ThrowsMessage;
constexpr size_t kHeader = 32;  // magic, version, length, checksum

int mutations() {
  const char* given = std::getenv("TRAINC_STRESS");
  return given ? std::max(1, std::atoi(given)) : 1000;
}

/// The small plan, whose temporary is sent somewhere while it is read.
Plan starting_plan() {
  Plan p = small_plan();
  const Step start = start_step("send", 0, {2}, {}, "sleep", 0.5);
  p.steps.insert(p.steps.end() - 2, start);
  p.steps.push_back(wait_step(start));
  plan_memory(p);
  return p;
}

/// `body` behind the header of `file`, with length and checksum that are its own.
std::string with_body(const std::string& file, const std::string& body) {
  uint64_t length = body.size(), checksum = 14695981039346656037u;
  for (unsigned char c : body) checksum = (checksum ^ c) * 1099511628211u;
  std::string fitted = file.substr(0, kHeader);
  std::memcpy(&fitted[16], &length, sizeof length);
  std::memcpy(&fitted[24], &checksum, sizeof checksum);
  return fitted + body;
}

/// What a file must do to a program that loads it: nothing, or a UserError. True where it was loaded.
template <class Load> bool survives(const std::string& file, const Load& load_as) {
  try {
    load_as(file);
    return true;
  } catch (const UserError&) { return false; }
}
bool is_plan(const std::string& file) {
  return survives(file, [](const std::string& f) {
    const Plan p = load(f);
    EXPECT_EQ(save(load(save(p))), save(p));
    EXPECT_FALSE(print(p).empty());
  });
}
bool is_foreach(const std::string& file) {
  return survives(file, [](const std::string& f) {
    const Foreach k = load_foreach(f);
    EXPECT_EQ(save(load_foreach(save(k))), save(k));
  });
}

// --- bytes

std::string mutated(std::string s, std::mt19937_64& random) {
  // Heads of items whose lengths, nesting and types a decoder must not believe.
  static const unsigned char heads[] = {0x00, 0x1b, 0x3b, 0x5b, 0x5f, 0x7b, 0x7f, 0x81, 0x9b, 0x9f,
                                        0xa1, 0xbb, 0xbf, 0xc0, 0xdb, 0xf4, 0xf6, 0xf9, 0xfb, 0xff};
  for (int n = 1 + random() % 4; n > 0; --n) {
    const size_t at = s.empty() ? 0 : random() % s.size(), length = std::min<size_t>(s.size() - at, 1 + random() % 40);
    switch (random() % 7) {
      case 0:
        if (!s.empty()) s[at] = static_cast<char>(s[at] ^ (1 << random() % 8));
        break;
      case 1:
        if (!s.empty()) s[at] = static_cast<char>(heads[random() % sizeof heads]);
        break;
      case 2: s.erase(at, length); break;
      case 3: s.insert(at, s.substr(random() % (s.size() + 1), length)); break;
      case 4: s.insert(at, std::string(1 + random() % 2000, static_cast<char>(heads[random() % sizeof heads]))); break;
      case 5: s.resize(at); break;
      default:
        for (size_t i = at; i < at + length; ++i) s[i] = static_cast<char>(random());
    }
  }
  return s;
}

template <class Survives> void mutate_bytes(const std::string& good, const Survives& survives_as) {
  std::mt19937_64 random(1);
  int loaded = 0;
  for (int i = 0; i < mutations(); ++i) {
    const std::string changed = mutated(good, random), body = mutated(good.substr(kHeader), random);
    if (changed != good) EXPECT_FALSE(survives_as(changed)) << "mutation " << i;
    loaded += survives_as(with_body(good, body));
  }
  std::cout << "  " << mutations() << " files with a wrong checksum refused; of as many with a right one, " << loaded
            << " are plans\n";
}
TEST(FileFuzz, BytesOfAPlan) { mutate_bytes(save(small_plan()), is_plan); }
TEST(FileFuzz, BytesOfAPlanThatStarts) { mutate_bytes(save(starting_plan()), is_plan); }
TEST(FileFuzz, BytesOfAForeachKernel) { mutate_bytes(save(small_foreach()), is_foreach); }

// --- values: what decodes, but says something else

/// Every value in `j`, with those that it holds.
void each(json& j, const std::function<void(json&)>& visit) {
  visit(j);
  if (j.is_structured())
    for (json& item : j) each(item, visit);
}

json strange(std::mt19937_64& random) {
  constexpr int64_t most = std::numeric_limits<int64_t>::max(), least = std::numeric_limits<int64_t>::min();
  static const json values[] = {0,
                                1,
                                -1,
                                -2,
                                2,
                                7,
                                63,
                                64,
                                77,
                                255,
                                256,
                                most,
                                most - 1,
                                most / 2,
                                most / 4,
                                least,
                                least + 1,
                                int64_t{1} << 31,
                                int64_t{1} << 32,
                                -(int64_t{1} << 31) - 1,
                                std::numeric_limits<uint64_t>::max(),
                                0.5,
                                -1e300,
                                std::numeric_limits<double>::infinity(),
                                std::numeric_limits<double>::quiet_NaN(),
                                true,
                                false,
                                nullptr,
                                "",
                                "interpret",
                                "sm_90a",
                                json::array(),
                                json::object(),
                                json::array({most, most}),
                                json::array({-1, 0}),
                                json::binary({}),
                                json::binary({0xc3})};
  return values[random() % std::size(values)];
}

template <class Survives> void mutate_values(const std::string& good, const Survives& survives_as) {
  const json body = json::from_cbor(good.substr(kHeader));
  json counted = body;
  int values = 0, loaded = 0;
  each(counted, [&](json&) { ++values; });
  std::mt19937_64 random(2);
  for (int i = 0; i < mutations(); ++i) {
    json changed = body;
    for (int n = 1 + random() % 3; n > 0; --n) {
      int place = random() % values;
      json value = strange(random);
      json* found = nullptr;
      each(changed, [&](json& j) {
        if (place-- == 0) found = &j;
      });
      if (!found) continue;
      const int how = random() % 4;
      if (how == 0 && found->is_array() && !found->empty()) found->erase(found->size() - 1);
      else if (how == 1 && found->is_array() && !found->empty()) found->push_back(found->front());
      else *found = value;
    }
    std::string bytes;
    json::to_cbor(changed, bytes);
    loaded += survives_as(with_body(good, bytes));
  }
  std::cout << "  of " << mutations() << " files with strange values, " << loaded << " are plans\n";
}
TEST(FileFuzz, ValuesOfAPlan) { mutate_values(save(small_plan()), is_plan); }
TEST(FileFuzz, ValuesOfAPlanThatStarts) { mutate_values(save(starting_plan()), is_plan); }
TEST(FileFuzz, ValuesOfAForeachKernel) { mutate_values(save(small_foreach()), is_foreach); }

// --- nesting: a decoder that calls itself for each level runs out of stack

TEST(FileFuzz, NestingIsRefusedBeforeItIsDecoded) {
  const std::string good = save(small_plan());
  const auto deep = [&](const std::string& open, int levels) {
    std::string body;
    for (int i = 0; i < levels; ++i) body += open;
    return with_body(good, body);
  };
  const std::string text_key("\xa1\x61k", 3);
  for (const std::string& open :
       {std::string("\x81"), std::string("\x82\x01"), std::string("\x9f"), std::string("\xbf\x61k"), text_key,
        std::string("\x7f"), std::string("\x5f"), std::string("\xc1")})
    for (int levels : {20, 1000, 200'000, 3'000'000})
      EXPECT_THAT([&] { load(deep(open, levels)); }, ThrowsMessage<UserError>(HasSubstr("not readable"))) << levels;
  const std::string whole = deep("\x81", 200'000) + '\0';  // complete: the innermost holds a number
  EXPECT_THAT([&] { load(with_body(good, whole.substr(kHeader))); },
              ThrowsMessage<UserError>(HasSubstr("not readable")));
}

}  // namespace
}  // namespace trainc::plan
