// TOML by toml++. CLI11's reader cuts strings at a # and ignores arrays that start on a new line,
// both without an error.
#include "config.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/did_you_mean.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "option_names.hpp"

namespace kvbench {
namespace {

class ConfigFile {
 public:
  ConfigFile(CLI::App& command, const std::string& path) : command_(command), path_(path) {}

  void apply() {
    const toml::table file = parse();
    for (const auto& [key, node] : file) {
      const toml::table* section = node.as_table();
      if (section == nullptr || section->is_inline()) {
        apply(key.str(), node);
        continue;
      }
      if (key != command_.get_name()) {
        fail(node, fmt::format("got section [{}], expected [{}] or no section", key.str(),
                               command_.get_name()));
      }
      for (const auto& [name, value] : *section) {
        apply(name.str(), value);
      }
    }
  }

 private:
  [[noreturn]] void fail(const toml::source_region& where, std::string_view what) const {
    throw InputError(fmt::format("--config {}: line {}: {}", path_, where.begin.line, what));
  }
  [[noreturn]] void fail(const toml::node& node, std::string_view what) const {
    fail(node.source(), what);
  }

  std::string read() const {
    constexpr std::size_t kMost = std::size_t{1} << 20;
    std::optional<std::string> found = read_at_most(path_, kMost);
    if (!found) {
      throw InputError(fmt::format("--config {}: cannot be read", path_));
    }
    std::string text = std::move(*found);
    if (text.size() > kMost) {
      throw InputError(fmt::format(
          "--config {}: got more than {} bytes, expected a TOML file of options", path_, kMost));
    }
    const std::size_t nul = text.find('\0');
    if (nul != std::string::npos) {
      throw InputError(fmt::format("--config {}: line {}: got a byte 0, expected text", path_,
                                   1 + std::ranges::count(text.substr(0, nul), '\n')));
    }
    return text;
  }

  toml::table parse() const {
    const std::string text = read();
    try {
      return toml::parse(text, path_);
    } catch (const toml::parse_error& e) {
      std::istringstream lines(text);
      std::string line;
      for (toml::source_index i = 0; i < e.source().begin.line; ++i) {
        std::getline(lines, line);
      }
      line.erase(line.find_last_not_of('\r') + 1);
      fail(e.source(), fmt::format("`{}`: {}", line, e.description()));
    }
  }

  // The value as on the command line.
  std::string text(std::string_view key, const toml::node& node) const {
    if (const auto* string = node.as_string()) {
      if (string->get().find('\0') != std::string::npos) {
        fail(node, fmt::format("{}: got a byte 0, expected text", key));
      }
      return string->get();
    }
    if (const auto* integer = node.as_integer()) {
      return fmt::format("{}", integer->get());
    }
    if (const auto* number = node.as_floating_point()) {
      return fmt::format("{:#}", number->get());  // keeps 16.0, which integer options reject
    }
    if (const auto* boolean = node.as_boolean()) {
      return boolean->get() ? "true" : "false";
    }
    fail(node, fmt::format("{}: expected a string in quotes, a number, true or false", key));
  }

  void apply(std::string_view key, const toml::node& node) {
    if (key == "config" || key == "help" || key == "help-all") {
      fail(node, fmt::format("'{}' is allowed only on the command line", key));
    }
    CLI::Option* option = command_.get_option_no_throw(fmt::format("--{}", key));
    if (option == nullptr) {
      fail(node, fmt::format("'{}' is not an option of kvbench {}{}", key, command_.get_name(),
                             did_you_mean(key, option_names(command_, ""))));
    }
    if (set_here_.contains(option)) {
      fail(node, fmt::format("'{}' is given twice", key));
    }
    std::vector<std::string> values;
    if (const toml::array* array = node.as_array()) {
      for (const toml::node& item : *array) {
        values.push_back(text(key, item));
      }
    } else {
      values.push_back(text(key, node));
    }
    if (option->count() > 0 || values.empty()) {
      return;
    }
    const bool takes_value = !option->get_type_name().empty();                    // --per-query=all
    if (option->get_expected_max() == 0 && !(takes_value && node.is_string())) {  // a flag
      if (!node.is_boolean()) {
        fail(node, fmt::format("{}: got {}, expected true or false", key, values.front()));
      }
      if (values.front() == "false") {
        return;
      }
    }
    try {
      option->add_result(values);
      option->run_callback();
    } catch (const CLI::Error& e) {
      fail(node, fmt::format("{}: {}", key, e.what()));
    }
    set_here_.insert(option);
  }

  CLI::App& command_;
  std::string path_;
  std::set<const CLI::Option*> set_here_;
};

}  // namespace

void apply_config(CLI::App& command, const std::string& path) {
  if (!path.empty()) {
    ConfigFile(command, path).apply();
  }
}

}  // namespace kvbench
