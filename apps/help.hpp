// The layout of --help: 100 columns, usage with argument names, defaults after descriptions; and
// what it says of an option, for other layouts.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace kvbench {

/// `prefix` and, behind it, `text` in lines that end within `width`, the next ones indented by as
/// much as the prefix; without a width, or where less than a third of it is left, one line.
std::string hanging(const std::string& prefix, const std::string& text,
                    std::optional<std::size_t> width);

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
  std::string make_usage(const CLI::App* app, std::string name) const override;
  std::string make_description(const CLI::App* app) const override;
  std::string make_footer(const CLI::App* app) const override;
  std::string make_subcommand(const CLI::App* sub) const override;
  std::string make_expanded(const CLI::App* sub) const override;
  std::string make_option(const CLI::Option* opt, bool is_positional) const override;
  std::string make_option_usage(const CLI::Option* opt) const override;

  /// "-o, --output OUT.csv", or "TRACE.h5..." of a positional one.
  std::string option_name(const CLI::Option* opt, bool is_positional) const;
  /// Its description, with the default behind it.
  static std::string option_description(const CLI::Option* opt, bool is_positional);
};

}  // namespace kvbench
