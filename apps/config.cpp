// The part of TOML that options need: comments, one level of sections, strings, numbers, true and
// false, and arrays of these over any number of lines. The rest of TOML is refused with its line.
// (CLI11's own reader drops what follows a # inside a string and takes no array that begins with a
// line of its own, both without a word.)
#include "config.hpp"

#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace kvbench {
namespace {

struct Item {
  std::string section;
  std::string key;
  std::vector<std::string> values;
  bool array = false;
};

class Reader {
 public:
  Reader(std::string text, std::string path) : text_(std::move(text)), path_(std::move(path)) {}

  std::vector<Item> items() {
    std::vector<Item> out;
    std::set<std::pair<std::string, std::string>> seen;
    std::string section;
    while (skip_to_content()) {
      if (take('[')) {
        section = key();
        expect(']', "']' behind the section's name");
        end_line();
        continue;
      }
      Item item;
      item.section = section;
      item.key = key();
      expect('=', "'=' behind the key");
      if (take('[')) {
        item.array = true;
        while (skip_to_content() && !take(']')) {
          item.values.push_back(scalar());
          skip_to_content();
          if (!take(',') && peek() != ']') {
            fail("',' or ']' in the array");
          }
        }
        if (at_ > text_.size() || text_[at_ - 1] != ']') {
          fail("']' at the array's end");
        }
      } else {
        item.values.push_back(scalar());
      }
      end_line();
      if (!seen.emplace(item.section, item.key).second) {
        throw InputError(fmt::format("--config {}: '{}' is given twice", path_, item.key));
      }
      out.push_back(std::move(item));
    }
    return out;
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(char c) {
    if (at_ < text_.size() && text_[at_] == c) {
      ++at_;
      return true;
    }
    return false;
  }

  void blanks() {
    while (peek() == ' ' || peek() == '\t') {
      ++at_;
    }
  }

  void comment() {
    if (peek() == '#') {
      while (at_ < text_.size() && text_[at_] != '\n') {
        ++at_;
      }
    }
  }

  // Over blanks, comments and line ends; false at the end of the file.
  bool skip_to_content() {
    while (at_ < text_.size()) {
      blanks();
      comment();
      if (!take('\n') && !take('\r')) {
        break;
      }
    }
    return at_ < text_.size();
  }

  void expect(char c, const char* what) {
    blanks();
    if (!take(c)) {
      fail(what);
    }
    blanks();
  }

  void end_line() {
    blanks();
    comment();
    take('\r');
    if (at_ < text_.size() && !take('\n')) {
      fail("the line's end");
    }
  }

  static bool bare(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  }

  std::string key() {
    blanks();
    if (peek() == '"' || peek() == '\'') {
      return quoted();
    }
    const std::size_t begin = at_;
    while (bare(peek())) {
      ++at_;
    }
    if (at_ == begin) {
      fail("a key or a [section]");
    }
    return text_.substr(begin, at_ - begin);
  }

  std::string quoted() {
    const char quote = text_[at_++];
    std::string out;
    while (peek() != quote) {
      if (at_ >= text_.size() || peek() == '\n') {
        fail("a closing quote");
      }
      if (quote == '"' && take('\\')) {
        const std::string_view from = "\"\\tn";
        const std::size_t which = from.find(peek());
        if (which == std::string_view::npos) {
          fail("one of \\\" \\\\ \\t \\n behind a backslash");
        }
        out += "\"\\\t\n"[which];
        ++at_;
      } else {
        out += text_[at_++];
      }
    }
    ++at_;
    return out;
  }

  std::string scalar() {
    if (peek() == '"' || peek() == '\'') {
      return quoted();
    }
    std::string word;
    while (bare(peek()) || peek() == '.' || peek() == '+') {
      word += peek() == '_' ? "" : std::string(1, peek());
      ++at_;
    }
    if (word == "true" || word == "false") {
      return word;
    }
    if (word.size() > 1 && word.front() == '+') {
      word.erase(0, 1);
    }
    double number = 0.0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (word.empty() || error != std::errc() || end != word.data() + word.size()) {
      fail("a string in quotes, a number, true or false");
    }
    return word;
  }

  [[noreturn]] void fail(const char* expected) const {
    std::size_t line = 1;
    for (std::size_t i = 0; i < at_ && i < text_.size(); ++i) {
      line += text_[i] == '\n' ? 1 : 0;
    }
    throw InputError(fmt::format("--config {}: line {}: expected {}", path_, line, expected));
  }

  std::string text_;
  std::string path_;
  std::size_t at_ = 0;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  // The stream of a folder opens, and fails at the first read.
  if (!file || (file.peek() != std::ifstream::traits_type::eof() && !(text << file.rdbuf())) ||
      file.bad()) {
    throw InputError(fmt::format("--config {}: cannot be read", path));
  }
  return std::move(text).str();
}

}  // namespace

void apply_config(CLI::App& command, const std::string& path) {
  std::set<const CLI::Option*> set_here;
  for (const Item& item : Reader(read_file(path), path).items()) {
    if (!item.section.empty() && item.section != command.get_name()) {
      throw InputError(fmt::format("--config {}: section [{}], expected [{}] or none", path,
                                   item.section, command.get_name()));
    }
    CLI::Option* option = command.get_option_no_throw("--" + item.key);
    if (option == nullptr || item.key == "config" || item.key == "help" || item.key == "help-all") {
      throw InputError(fmt::format("--config {}: '{}' is no option of kvbench {}", path, item.key,
                                   command.get_name()));
    }
    if (set_here.count(option) > 0) {
      throw InputError(fmt::format("--config {}: '{}' is given twice", path, item.key));
    }
    if (option->count() > 0 || item.values.empty()) {
      continue;
    }
    try {
      if (option->get_expected_max() == 0) {  // a flag
        if (item.array || (item.values[0] != "true" && item.values[0] != "false")) {
          throw InputError(fmt::format("--config {}: {}: expected true or false", path, item.key));
        }
        if (item.values[0] == "false") {
          continue;
        }
      }
      option->add_result(item.values);
      option->run_callback();
      set_here.insert(option);
    } catch (const CLI::Error& e) {
      throw InputError(fmt::format("--config {}: {}: {}", path, item.key, e.what()));
    }
  }
}

}  // namespace kvbench
