// Layout of --help: 100 columns, usage with argument names, defaults after descriptions.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace kvbench {

/// Returns `prefix` + `text`, wrapped at `width` with a hanging indent of the prefix's length. Not
/// wrapped without a width or if the prefix takes more than two thirds of it.
std::string hanging_indent(const std::string& prefix, const std::string& text,
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
};

}  // namespace kvbench
