#include "report/csv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "core/error.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;

struct Record {
  Fields fields;
  std::size_t line = 0;  // where it begins, 1-based
};

/// RFC 4180 as a small machine over the text; one object reads one text.
class Parser {
 public:
  Parser(std::string_view text, std::string_view source) : text_(text), source_(source) {
    constexpr std::string_view bom = "\xEF\xBB\xBF";
    if (text_.substr(0, bom.size()) == bom) {
      text_.remove_prefix(bom.size());
    }
  }

  /// False at the end of the text.
  bool next(Record& record) {
    while (at_line_end()) {
      take_line_end();
    }
    if (at_ >= text_.size()) {
      return false;
    }
    record.fields.clear();
    record.line = line_;
    while (true) {
      record.fields.push_back(text_[at_] == '"' ? quoted() : bare());
      if (at_ < text_.size() && text_[at_] == ',') {
        ++at_;
        if (at_ < text_.size()) {
          continue;
        }
        record.fields.emplace_back();  // the text ends behind a comma
      }
      break;
    }
    if (at_ < text_.size()) {
      take_line_end();
    }
    return true;
  }

 private:
  bool at_line_end() const {
    return at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r');
  }

  void take_line_end() {
    if (text_[at_] == '\r') {
      ++at_;
      if (at_ >= text_.size() || text_[at_] != '\n') {
        fail(line_, "a CR that no LF follows", "LF or CRLF at the end of a line");
      }
    }
    ++at_;
    ++line_;
  }

  std::string bare() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\n' && text_[at_] != '\r') {
      if (text_[at_] == '"') {
        fail(line_, "a quote inside an unquoted field", "the whole field in quotes");
      }
      ++at_;
    }
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::string quoted() {
    const std::size_t first_line = line_;
    std::string out;
    ++at_;
    while (true) {
      if (at_ >= text_.size()) {
        fail(first_line, "the end of the file inside quotes", "a closing quote");
      }
      const char c = text_[at_++];
      if (c == '"') {
        if (at_ >= text_.size() || text_[at_] != '"') {
          break;
        }
        ++at_;
      } else if (c == '\n') {
        ++line_;
      }
      out += c;
    }
    if (at_ < text_.size() && text_[at_] != ',' && !at_line_end()) {
      fail(line_, fmt::format("`{}` behind a closing quote", text_[at_]), "a comma or a line end");
    }
    return out;
  }

  [[noreturn]] void fail(std::size_t line, std::string_view got, std::string_view expected) const {
    throw InputError(fmt::format("{}: line {}: got {}, expected {}", source_, line, got, expected));
  }

  std::string_view text_;
  std::string_view source_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
};

}  // namespace

std::size_t Table::column(std::string_view name) const {
  const auto it = std::find(header.begin(), header.end(), name);
  if (it == header.end()) {
    throw InputError(fmt::format("{}: column `{}` is missing", source, name));
  }
  return static_cast<std::size_t>(it - header.begin());
}

std::string csv_line(std::span<const std::string> fields) {
  if (fields.size() == 1 && fields.front().empty()) {
    return "\"\"\n";
  }
  std::string line;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) {
      line += ',';
    }
    if (fields[i].find_first_of(",\"\r\n") == std::string::npos) {
      line += fields[i];
      continue;
    }
    line += '"';
    for (const char c : fields[i]) {
      if (c == '"') {
        line += '"';
      }
      line += c;
    }
    line += '"';
  }
  line += '\n';
  return line;
}

std::vector<Fields> parse_csv(std::string_view text, std::string_view source) {
  Parser parser(text, source);
  std::vector<Fields> records;
  for (Record record; parser.next(record);) {
    records.push_back(std::move(record.fields));
  }
  return records;
}

Table parse_table(std::string_view text, const std::string& source) {
  Parser parser(text, source);
  Table table;
  table.source = source;
  Record record;
  if (!parser.next(record)) {
    throw InputError(fmt::format("{}: the file is empty, expected a header", source));
  }
  table.header = std::move(record.fields);
  std::set<std::string> names;
  for (const std::string& name : table.header) {
    if (!names.insert(name).second) {
      throw InputError(fmt::format("{}: line {}: column `{}` stands twice in the header", source,
                                   record.line, name));
    }
  }
  while (parser.next(record)) {
    if (record.fields.size() != table.header.size()) {
      throw InputError(fmt::format("{}: line {}: got {} fields, expected {} as in the header",
                                   source, record.line, record.fields.size(), table.header.size()));
    }
    table.rows.push_back(std::move(record.fields));
  }
  return table;
}

std::string read_text_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    throw InputError(fmt::format("{}: no such file", path.string()));
  }
  if (!fs::is_regular_file(status)) {
    throw InputError(fmt::format("{}: not a regular file", path.string()));
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in || (in.peek() != std::ifstream::traits_type::eof() && !(text << in.rdbuf()))) {
    throw IoError(fmt::format("{}: cannot read it: {}", path.string(), std::strerror(errno)));
  }
  return std::move(text).str();
}

Table read_table(const fs::path& path) {
  return parse_table(read_text_file(path), path.string());
}

std::size_t whole_records_length(std::string_view text) {
  bool quoted = false;
  std::size_t length = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      quoted = !quoted;  // a doubled quote toggles twice
    } else if (text[i] == '\n' && !quoted) {
      length = i + 1;
    }
  }
  return length;
}

}  // namespace kvbench
