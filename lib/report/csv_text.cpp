// CSV as text: lines from fields, and fields from lines. csv.cpp has the files.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "report/csv.hpp"
#include "report/row_crc.hpp"

namespace kvbench {
namespace {

struct Record {
  Fields fields;
  std::size_t line = 0;          // where it begins, 1-based
  std::string_view before_last;  // its bytes before the last field
};

/// RFC 4180; one object reads one text.
class Parser {
 public:
  Parser(std::string_view text, std::string_view source) : text_(text), source_(source) {
    constexpr std::string_view bom = "\xEF\xBB\xBF";
    if (text_.starts_with(bom)) {
      text_.remove_prefix(bom.size());
    }
  }

  /// False at the end of the text.
  bool next(Record& record) {
    while (peek() == '\n' || peek() == '\r') {
      take_line_end();
    }
    if (peek() == kEnd) {
      return false;
    }
    record = {{}, line_, {}};
    const std::size_t begin = at_;
    do {
      record.before_last = text_.substr(begin, at_ - begin);
      record.fields.push_back(take('"') ? quoted() : bare());
    } while (take(','));
    if (peek() != kEnd) {
      take_line_end();
    }
    return true;
  }

 private:
  static constexpr int kEnd = -1;

  int peek() const { return at_ < text_.size() ? static_cast<unsigned char>(text_[at_]) : kEnd; }

  bool take(char c) {
    const bool there = peek() == c;
    at_ += there ? 1 : 0;
    return there;
  }

  void take_line_end() {
    if (take('\r') && peek() != '\n') {
      fail(line_, "a CR that no LF follows", "LF or CRLF at the end of a line");
    }
    ++at_;
    ++line_;
  }

  std::string bare() {
    const std::string_view field = text_.substr(at_, text_.find_first_of(",\n\r", at_) - at_);
    if (field.find('"') != std::string_view::npos) {
      fail(line_, "a quote inside an unquoted field", "the whole field in quotes");
    }
    at_ += field.size();
    return std::string(field);
  }

  // Behind the first quote.
  std::string quoted() {
    const std::size_t first_line = line_;
    std::string out;
    while (true) {
      const std::size_t quote = text_.find('"', at_);
      if (quote == std::string_view::npos) {
        fail(first_line, "the end of the file inside quotes", "a closing quote");
      }
      out += text_.substr(at_, quote - at_);
      at_ = quote + 1;
      if (!take('"')) {
        break;
      }
      out += '"';
    }
    line_ += static_cast<std::size_t>(std::count(out.begin(), out.end(), '\n'));
    if (peek() != kEnd && peek() != ',' && peek() != '\n' && peek() != '\r') {
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

// Checks the record's checksum, and takes it and the run off.
void take_row_crc(Record& record, Table& table) {
  const std::string expected = row_crc(record.before_last);
  if (record.fields.back() != expected) {
    throw InputError(fmt::format(
        "{}: line {}: row_crc is {:.40}, expected {} (the row was changed after it was written)",
        table.source, record.line, record.fields.back(), expected));
  }
  record.fields.pop_back();
  table.runs.insert(std::move(record.fields.back()));
  record.fields.pop_back();
}

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
  const std::size_t width = table.header.size();
  table.checked = take_row_crc_columns(table.header, source);
  while (parser.next(record)) {
    if (record.fields.size() != width) {
      throw InputError(fmt::format("{}: line {}: got {} fields, expected {} as in the header",
                                   source, record.line, record.fields.size(), width));
    }
    if (table.checked) {
      take_row_crc(record, table);
    }
    table.rows.push_back(std::move(record.fields));
  }
  return table;
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
