#include "man_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string_view>

#include "help.hpp"
#include "report/build_info.hpp"

namespace kvbench {
namespace {

// Text that roff prints verbatim.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '\\': out += "\\e"; break;
      case '-': out += "\\-"; break;
      case '\'': out += "\\(aq"; break;
      case '`': out += "\\(ga"; break;
      case '^': out += "\\(ha"; break;
      case '~': out += "\\(ti"; break;
      default: out += c;
    }
  }
  return out.starts_with('.') ? "\\&" + out : out;  // otherwise a roff request
}

std::string bold(std::string_view text) {
  return fmt::format("\\fB{}\\fR", escaped(text));
}

// Lines that begin with a blank are literal, other lines are filled.
std::string paragraphs(const std::string& text) {
  std::string out;
  std::istringstream lines(text);
  bool literal = false;
  for (std::string line; std::getline(lines, line);) {
    const bool now = line.starts_with(' ');
    out += now == literal ? "" : now ? ".PP\n.nf\n" : ".fi\n";
    literal = now;
    out += line.empty() ? ".PP\n" : escaped(line) + "\n";
  }
  return out + (literal ? ".fi\n" : "");
}

std::string man_entry(std::string_view name, const std::string& description) {
  return fmt::format(".TP\n{}\n{}\n", bold(name), escaped(description));
}

std::string options(const CLI::App& app) {
  const HelpFormatter formatter;
  std::string out;
  for (const std::string& group : app.get_groups()) {
    std::string entries;
    for (const CLI::Option* opt : app.get_options()) {
      if (opt->get_group() == group) {
        const bool positional = opt->get_positional();
        entries += man_entry(formatter.option_name(opt, positional),
                             HelpFormatter::option_description(opt, positional));
      }
    }
    if (!entries.empty()) {
      out += group == "Options" ? ".SH OPTIONS\n" + entries
                                : fmt::format(".SS {}\n{}", escaped(group), entries);
    }
  }
  return out;
}

std::string title(const CLI::App& app, const CLI::App* command) {
  return command == nullptr ? app.get_name() : app.get_name() + "-" + command->get_name();
}

}  // namespace

std::string man_page(const CLI::App& app, const CLI::App* command) {
  const CLI::App& shown = command == nullptr ? app : *command;
  const HelpFormatter formatter;
  std::string upper = title(app, command);
  std::ranges::transform(upper, upper.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  std::istringstream usage(formatter.make_usage(
      &shown, command == nullptr ? app.get_name() : app.get_name() + " " + command->get_name()));
  std::string synopsis;
  while (std::getline(usage, synopsis) && synopsis.empty()) {
  }
  synopsis = synopsis.substr(std::string_view("Usage: ").size());

  std::string out = fmt::format(".TH {} 1 \"\" \"kvbench {}\" \"kvbench manual\"\n", escaped(upper),
                                build_info().version);
  const std::string what = command == nullptr ? "replay, measure and compare KV-cache compression"
                                              : command->get_description();
  out += fmt::format(".SH NAME\n{} \\- {}\n", escaped(title(app, command)), escaped(what));
  out += fmt::format(".SH SYNOPSIS\n{}\n", escaped(synopsis));
  out += fmt::format(".SH DESCRIPTION\n{}", paragraphs(shown.get_description()));
  out += options(shown);
  std::string also;
  if (command == nullptr) {
    out += ".SH COMMANDS\n";
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
      out += man_entry(sub->get_name(), sub->get_description());
      also += fmt::format("{}{}(1)", also.empty() ? "" : ",\n", bold(title(app, sub)));
    }
  } else {
    also = bold(app.get_name()) + "(1)";
  }
  if (!shown.get_footer().empty()) {
    out +=
        ".SH NOTES\n" +
        paragraphs(shown.get_footer().substr(std::min<std::size_t>(1, shown.get_footer().size())));
  }
  return out + ".SH SEE ALSO\n" + also + "\n";
}

}  // namespace kvbench
