// Every parameter of every method at its bounds, beyond them and as no number at all: refused with
// one line before any row is written, or a run none of whose rows failed. Never in between.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "algorithms/registry.hpp"
#include "replay_run.hpp"

namespace kvbench::test_option_fuzz {
namespace {

namespace fs = std::filesystem;

// Each run surveys its trace in a process of its own, which takes a sanitizer long: there every
// eleventh is tried (odd: in both protocols), of all methods. The release build tries all. The
// sanitizer build links this file's object of the release build, so no macro tells.
extern "C" void __asan_init() __attribute__((weak));
const Index kStride = __asan_init != nullptr ? 11 : 1;

std::vector<std::string> values_of(const ParamSpec& p) {
  std::vector<std::string> out = {"",   "auto", "nan", "inf", "-inf", "1e999", "0x10", "1,",
                                  " 1", "1 ",   "+1",  "--1", "yes",  "01",    "1e",   "\xc3\xa9"};
  const auto add = [&](double x) { out.push_back(fmt::format("{}", x)); };
  switch (p.kind) {
    case ParamKind::flag:
      for (const char* text : {"true", "false", "0", "1", "2", "True"}) {
        out.emplace_back(text);
      }
      break;
    case ParamKind::name:
      for (const char* text : {"past", "repeat", "a.b-c_d", "a b", "a/b", "none"}) {
        out.emplace_back(text);
      }
      break;
    case ParamKind::method:
      for (const Method& m : methods()) {
        out.push_back(m.info.name);
      }
      [[fallthrough]];
    case ParamKind::choice: out.insert(out.end(), p.choices.begin(), p.choices.end()); break;
    case ParamKind::integer:
      for (const double x : {p.min - 1, p.min, p.min + 1, p.max - 1, p.max, p.max + 1, 0.0, 1.0,
                             7.0, 8.0, 0.5, -1.0, 9.3e18}) {
        out.push_back(fmt::format("{:.17g}", x));
      }
      break;
    case ParamKind::real:
      for (const double x :
           {p.min, p.max, std::nextafter(p.min, -1e300), std::nextafter(p.max, 1e300),
            0.5 * (p.min + p.max), 0.0, -0.0, 1.0, -1.0, 5e-324, 1e308}) {
        add(x);
      }
      break;
  }
  return out;
}

class OptionFuzz : public testing_replay::ReplayTest {
 protected:
  void SetUp() override {
    folder_ = testing_rows::test_folder();
    trace_ = testing_replay::make_trace(
        folder_ / "t.h5",
        {.tokens = {56}, .rope = testing_replay::rope_tables(56 + 512, 4), .hidden = 12});
  }

  // Whether it ran; a refusal must be one line and leave nothing behind.
  bool runs(const std::string& spec, Protocol protocol, bool with_budget) {
    ReplayOptions o = basic("out.csv");
    o.algorithms = {spec};
    o.protocol = protocol;
    o.sink = 2;
    o.queries = 6;
    o.heads = {0};
    o.overwrite = true;
    if (with_budget) {
      o.budgets = {0.6};
    }
    fs::remove(o.out);
    RunResult result;
    try {
      result = run(o);
    } catch (const InputError& e) {
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << spec << ": " << e.what();
      EXPECT_FALSE(fs::exists(o.out)) << spec << ": refused after the table was begun";
      return false;
    }
    EXPECT_EQ(result.failed, 0) << spec << " (" << name(protocol) << "): "
                                << (result.failed > 0
                                        ? read_table(o.out).rows.front()[column_index("status")]
                                        : "");
    return true;
  }
};

TEST_F(OptionFuzz, EveryParameterIsRefusedOrRuns) {
  Index tried = 0;
  Index ran = 0;
  for (const Method& m : methods()) {
    for (const ParamSpec& p : m.info.params) {
      const bool size =
          std::find(m.info.sizes.begin(), m.info.sizes.end(), p.name) != m.info.sizes.end();
      for (const std::string& value : values_of(p)) {
        const std::string spec = m.info.name + ":" + p.name + "=" + value;
        for (const Protocol protocol : kProtocols) {
          const bool there = protocol == Protocol::stream      ? m.open_stream != nullptr
                             : protocol == Protocol::retrieval ? m.open_reads != nullptr
                                                               : m.compress != nullptr;
          if (there) {
            if (tried++ % kStride == 0) {
              ran += runs(spec, protocol, !size) ? 1 : 0;
            }
          }
        }
      }
    }
  }
  EXPECT_GE(tried, 1200);
  EXPECT_GE(ran, tried / kStride / 6);  // bounds themselves, choices and defaults run
}

}  // namespace
}  // namespace kvbench::test_option_fuzz
