#include "help.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

namespace kvbench {
namespace {

constexpr std::size_t kWidth = 98;  // --help-all indents a subcommand's help by two
constexpr std::size_t kColumn = 32;
constexpr std::size_t kUnbroken = 24;  // notes up to this length are not wrapped
constexpr char kHardBlank = '\x01';

// Wraps at `width` columns. Lines that begin with a blank are not changed.
std::string wrapped(const std::string& text, std::size_t width) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!out.empty()) {
      out += '\n';
    }
    if (!line.empty() && line.front() == ' ') {
      out += line;
      continue;
    }
    std::istringstream words(line);
    std::size_t at = 0;
    for (std::string word; words >> word;) {
      if (at > 0 && at + 1 + word.size() > width) {
        out += '\n';
        at = 0;
      }
      std::replace(word.begin(), word.end(), kHardBlank, ' ');
      out += (at > 0 ? " " : "") + word;
      at += (at > 0 ? 1 : 0) + word.size();
    }
  }
  return out;
}

// Protects short notes such as "[default: 1]" from wrapping.
std::string with_unbroken_notes(std::string text) {
  for (auto at = text.find(" ["); at != std::string::npos; at = text.find(" [", at + 1)) {
    const auto end = text.find(']', at);
    if (end != std::string::npos && end - at - 2 <= kUnbroken) {
      std::replace(text.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                   text.begin() + static_cast<std::ptrdiff_t>(end), ' ', kHardBlank);
    }
  }
  return text;
}

// The name on the left, its description on the right, or below if the name is long.
std::string entry(const std::string& name, const std::string& description) {
  std::string out = "  " + name;
  const std::string indent(kColumn, ' ');
  bool first = out.size() + 2 <= kColumn;
  if (first) {
    out.resize(kColumn, ' ');
  } else {
    out += '\n';
  }
  std::istringstream lines(wrapped(with_unbroken_notes(description), kWidth - kColumn));
  for (std::string line; std::getline(lines, line);) {
    out += (first ? "" : indent) + line + "\n";
    first = false;
  }
  return out;
}

std::string default_text(const CLI::Option* opt) {
  std::string text = opt->get_default_str();
  if (text.size() > 1 && text.front() == '[' && text.back() == ']') {
    text = text.substr(1, text.size() - 2);
  }
  // Lets a long list wrap after commas.
  std::string out;
  for (const char c : text) {
    out += c;
    out += c == ',' ? " " : "";
  }
  return out;
}

bool takes_many(const CLI::Option* opt) {
  return opt->get_expected_max() >= CLI::detail::expected_max_vector_size;
}

}  // namespace

std::string hanging_indent(const std::string& prefix, const std::string& text,
                           std::optional<std::size_t> width) {
  if (!width || 3 * prefix.size() > 2 * *width) {
    return prefix + text + '\n';
  }
  std::istringstream lines(wrapped(text, *width - prefix.size()));
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    out += (out.empty() ? prefix : std::string(prefix.size(), ' ')) + line + '\n';
  }
  return out.empty() ? prefix + '\n' : out;
}

HelpFormatter::HelpFormatter() {
  label("INT", "N");
  label("UINT", "N");
  label("FLOAT", "X");
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode mode) const {
  return CLI::detail::find_and_replace(Formatter::make_help(app, std::move(name), mode), "\n\n\n",
                                       "\n\n");
}

std::string HelpFormatter::make_usage(const CLI::App* app, std::string name) const {
  std::string out = "Usage: " + name + " [OPTIONS]";
  for (const CLI::Option* opt :
       app->get_options([](const CLI::Option* o) { return o->get_positional(); })) {
    out += " " + make_option_usage(opt);
  }
  if (app->get_require_subcommand_min() > 0) {
    out += " SUBCOMMAND";
  }
  return "\n" + out + "\n";
}

std::string HelpFormatter::make_description(const CLI::App* app) const {
  return wrapped(app->get_description(), kWidth) + "\n";
}

std::string HelpFormatter::make_footer(const CLI::App* app) const {
  return app->get_footer().empty() ? "" : wrapped(app->get_footer(), kWidth) + "\n";
}

std::string HelpFormatter::make_subcommand(const CLI::App* sub) const {
  return entry(sub->get_name(), sub->get_description());
}

std::string HelpFormatter::make_expanded(const CLI::App* sub) const {
  std::string usage = make_usage(sub, "kvbench " + sub->get_name());
  usage = usage.substr(std::string("\nUsage: ").size());
  const std::string footer = make_footer(sub);
  std::istringstream lines(make_description(sub) + make_positionals(sub) +
                           make_groups(sub, CLI::AppFormatMode::Sub) +
                           (footer.empty() ? "" : "\n" + footer));
  std::string out = usage;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) {
      out += "  " + line + "\n";
    }
  }
  return out;
}

std::string HelpFormatter::make_option(const CLI::Option* opt, bool is_positional) const {
  std::string description = opt->get_description();
  if (is_positional) {
    return entry(get_label(opt->get_type_name()) + (takes_many(opt) ? "..." : ""), description);
  }
  const bool takes_value = opt->get_type_size() != 0;
  std::string name = CLI::detail::find_and_replace(opt->get_name(false, true), ",", ", ");
  if (takes_value && !opt->get_type_name().empty()) {
    name += " " + get_label(opt->get_type_name());
  }
  if (takes_value && !opt->get_default_str().empty()) {
    description += " [default: " + default_text(opt) + "]";
  }
  if (takes_value && opt->get_required()) {
    description += " [required]";
  }
  return entry(name, description);
}

std::string HelpFormatter::make_option_usage(const CLI::Option* opt) const {
  const std::string name = get_label(opt->get_type_name()) + (takes_many(opt) ? "..." : "");
  return opt->get_required() ? name : "[" + name + "]";
}

}  // namespace kvbench
