// Options that take decimal numbers, or lists. CLI11 alone reads 010 as 8, 0x10 as 16 and an
// overflow as the largest number.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/error.hpp"
#include "core/number_range.hpp"
#include "core/parse_number.hpp"
#include "core/types.hpp"
#include "parse_enum.hpp"
#include "replay/options.hpp"

namespace kvbench {

/// Accepts decimal integers that fit into a T. Rejects leading zeros, a plus sign, other bases,
/// fractions and overflows.
template <class T>
CLI::Validator decimal() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        T value = 0;
        return parse_decimal(text, value)
                   ? ""
                   : fmt::format(
                         "got '{}', expected a decimal integer of at most {} bits without "
                         "leading zeros",
                         text, 8 * sizeof(T));
      },
      "");
}

/// Accepts decimal numbers in the range of a double. Rejects empty text and underflow (1e-400),
/// which CLI11 reads as 0.
inline CLI::Validator real() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        double value = 0;
        return parse_number(text, value) ? ""
                                         : fmt::format("got '{}', expected a decimal number", text);
      },
      "");
}

/// decimal() or real().
template <class T>
CLI::Validator number() {
  if constexpr (std::is_integral_v<T>) {
    return decimal<T>();
  } else {
    return real();
  }
}

/// Rewrites `25%` and `1/4` as decimal numbers. Leaves other texts.
inline CLI::Validator fraction() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const std::string_view all = text;
        double part = 0.0;
        double whole = 100.0;
        bool good = false;
        if (all.ends_with('%')) {
          good = parse_number(all.substr(0, all.size() - 1), part);
        } else if (const std::size_t slash = all.find('/'); slash != all.npos) {
          good = parse_number(all.substr(0, slash), part) &&
                 parse_number(all.substr(slash + 1), whole);
        }
        if (good && whole > 0.0) {
          text = fmt::format("{}", part / whole);
        }
        return "";
      },
      "");
}

/// An option that takes one decimal integer.
template <class T>
CLI::Option* integer_option(CLI::App& app, const char* flag, T& value, const char* help,
                            const char* type_name) {
  return app.add_option(flag, value, help)
      ->capture_default_str()
      ->check(decimal<T>())
      ->type_name(type_name);
}

/// An option that takes a comma-separated list of indices and ranges; without it `values` stays
/// empty, which means all. `ranges` receives the ranges, whose indices are also in `values`.
/// `words`: values that may stand alone, by their names.
inline CLI::Option* index_option(CLI::App& app, const char* flag, std::vector<Index>& values,
                                 std::vector<Range>& ranges, const std::string& help,
                                 const std::map<std::string, Index>& words = {}) {
  constexpr std::uint64_t kMost = 1000000;
  const auto read = [&values, &ranges, flag, words](const std::vector<std::string>& texts) {
    values.clear();
    ranges.clear();
    if (const auto word = words.find(texts.front()); word != words.end() && texts.size() == 1) {
      values.push_back(word->second);
      return;
    }
    for (const std::string& text : texts) {
      if (is_range(text)) {
        const auto range = parse_range<Index>(flag, text, kMost);
        for (std::uint64_t i = 0; i < range.size(); ++i) {
          values.push_back(range[i]);
        }
        ranges.push_back({range.begin, range.end});
      } else if (!parse_decimal(text, values.emplace_back()) || values.back() < 0) {
        throw InputError(fmt::format(
            "{}: got '{}', expected an integer of at least 0 without leading zeros", flag, text));
      }
    }
  };
  return app
      .add_option_function<std::vector<std::string>>(
          flag, option_reader(read),
          help +
              "; a range excludes its end (0:3 is 0, 1, 2) and skips indices that the traces lack "
              "[default: all]")
      ->allow_extra_args(false)
      ->delimiter(',')
      ->type_name("N|A:B[:STEP],...");
}

/// The parts of a list: commas separate them, `\,` is a comma within one. Empty parts are dropped.
inline std::vector<std::string> list_parts(std::string_view text) {
  std::vector<std::string> out(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ',') {
      out.emplace_back();
    } else {
      out.back() += text[text.substr(i).starts_with("\\,") ? ++i : i];
    }
  }
  std::erase(out, "");
  return out;
}

/// An option that takes a comma-separated list as one word: the next word may be a trace.
template <class T>
CLI::Option* list_option(CLI::App& app, const char* flag, std::vector<T>& values, const char* help,
                         const char* type_name) {
  if constexpr (std::is_same_v<T, std::string>) {
    const auto read = [&values](const std::vector<std::string>& texts) {
      values.clear();
      for (const std::string& text : texts) {
        const std::vector<std::string> parts = list_parts(text);
        values.insert(values.end(), parts.begin(), parts.end());
      }
      if (values.empty()) {
        values.emplace_back();  // an empty list would mean all
      }
    };
    return app.add_option_function<std::vector<std::string>>(flag, read, help)
        ->default_function([&values] { return fmt::format("[{}]", fmt::join(values, ",")); })
        ->allow_extra_args(false)
        ->type_name(type_name);
  } else {
    // CLI11 would read a double by way of a long double: rounded twice.
    const auto read = [&values](const std::vector<std::string>& texts) {
      values.clear();
      for (const std::string& text : texts) {
        parse_number(text, values.emplace_back());  // checked before
      }
    };
    return app.add_option_function<std::vector<std::string>>(flag, read, help)
        ->allow_extra_args(false)
        ->check(number<T>())
        ->delimiter(',')
        ->type_name(type_name);
  }
}

/// --layers, --prompts and `heads` ("--heads"), whose values the help calls `kind`.
inline void selection_options(CLI::App& app, TraceOptions& o, const char* heads, const char* kind,
                              const char* group) {
  index_option(app, "--layers", o.layers, o.layer_ranges,
               "Layer indices of the model, `global` (layers without a sliding window) or "
               "`windowed` (others)",
               {{"global", kGlobalLayers}, {"windowed", kWindowedLayers}})
      ->group(group);
  index_option(app, heads, o.heads, o.head_ranges, kind)->group(group);
  list_option(app, "--prompts", o.prompts, "Prompt ids [default: all]", "ID,...")->group(group);
}

}  // namespace kvbench
