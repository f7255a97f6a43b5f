// Rows one after the other, against a reader that has the whole text before it.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "files.hpp"
#include "refusal.hpp"
#include "report/table_reader.hpp"
#include "report_rows.hpp"

namespace kvbench::test_table_reader {
namespace {

using testing_replay::expect_refusal;
using testing_replay::refusal;
using testing_replay::write_bytes;
using testing_rows::test_folder;

// The slow reference: a state machine over single bytes. Nothing where the text is no table.
std::optional<std::vector<Fields>> slow_records(const std::string& text) {
  std::vector<Fields> out;
  Fields fields;
  std::string field;
  enum class At { begin, bare, quoted, behind } at = At::begin;
  const auto end_record = [&] {
    fields.push_back(field);
    if (fields.size() > 1 || !field.empty() || at == At::behind) {
      out.push_back(fields);
    }
    fields.clear();
    field.clear();
    at = At::begin;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (at == At::quoted) {
      if (c != '"') {
        field += c;
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        field += text[++i];
      } else {
        at = At::behind;
      }
    } else if (c == ',') {
      fields.push_back(field);
      field.clear();
      at = At::begin;
    } else if (c == '\n' || c == '\r') {
      if (c == '\r' && (i + 1 == text.size() || text[++i] != '\n')) {
        return std::nullopt;
      }
      end_record();
    } else if (at == At::behind || (c == '"' && at == At::bare)) {
      return std::nullopt;
    } else if (c == '"') {
      at = At::quoted;
    } else {
      field += c;
      at = At::bare;
    }
  }
  if (at == At::quoted) {
    return std::nullopt;
  }
  if (at != At::begin || !fields.empty()) {
    end_record();
  }
  const bool wide = std::ranges::all_of(
      out, [&](const Fields& record) { return record.size() == out.front().size(); });
  return out.empty() || !wide ? std::nullopt : std::optional(out);
}

TEST(TableReader, AgreesWithAByteByByteReferenceOnRandomTexts) {
  std::mt19937 random(11);
  constexpr std::string_view alphabet = "ab,,\"\"\r\n\n";
  constexpr std::size_t kAtOnce = std::size_t{1} << 18;  // of the reader
  int tables = 0;
  for (int i = 0; i < 20000; ++i) {
    // Some are cut somewhere by the end of what is read at once.
    std::string text = "x,y\n";
    if (i % 50 == 0) {
      text += "," + std::string(kAtOnce - text.size() - 2 - random() % 24, 'p') + "\n";
    }
    for (std::size_t n = random() % 24; n-- > 0;) {
      text += alphabet[random() % alphabet.size()];
    }
    const auto expected = slow_records(text);
    std::optional<std::vector<Fields>> got;
    try {
      TableReader reader(std::make_unique<std::istringstream>(text), "f.csv");
      got.emplace(1, reader.header());
      while (reader.next()) {
        got->push_back(reader.row());
      }
    } catch (const InputError&) {
      got.reset();
    }
    ASSERT_TRUE(got == expected) << text.substr(text.rfind('p') + 1);
    tables += expected && expected->size() > 2 ? 1 : 0;
  }
  EXPECT_GT(tables, 100);
}

TEST(TableReader, LinesAreThoseOfTheFile) {
  std::mt19937 random(12);
  const auto path = test_folder() / "t.csv";
  std::string text = csv_line(Fields{"a", "b"});
  std::vector<std::string> lines;
  for (int i = 0; i < 3000; ++i) {
    // Some are longer than what is read at once, with line ends in quotes.
    const std::size_t size = random() % (i % 100 == 0 ? 40000 : 30);
    lines.push_back(
        csv_line(Fields{std::to_string(i), std::string(size, i % 3 == 0 ? '\n' : 'x')}));
    text += lines.back();
  }
  write_bytes(path, text);
  TableReader reader(path);
  for (const std::string& line : lines) {
    ASSERT_TRUE(reader.next());
    ASSERT_EQ(reader.text(), line);
  }
  EXPECT_FALSE(reader.next());
  EXPECT_EQ(reader.rows(), 3000);
  EXPECT_EQ(reader.sha256(), sha256_text(text));
}

TEST(TableReader, ByteZeroAndTooManyFieldsAreRefused) {
  const auto refused = [](const std::string& text) {
    return refusal(
        [&] { TableReader(std::make_unique<std::istringstream>(text), "f.csv").next(); });
  };
  using namespace std::string_literals;
  for (const std::string& text : {"a,b\n1,\0\n"s, "a,b\n\"\n\0\",1\n"s}) {
    EXPECT_EQ(refused(text), "f.csv: line 2: got a byte 0, expected text");
  }
  EXPECT_EQ(refused("a\0,b\n"s), "f.csv: line 1: got a byte 0, expected text");
  const std::string commas(std::size_t{1} << 16, ',');
  const std::string says = "got a row of more than 65536 fields, expected fewer";
  EXPECT_EQ(refused("a,b\n" + commas + "\n"), "f.csv: line 2: " + says);
  EXPECT_EQ(refused(commas), "f.csv: line 1: " + says);
  EXPECT_EQ(refused("a,b\n" + commas.substr(1) + "\n"),
            "f.csv: line 2: got 65536 fields, expected 2 as in the header");
}

TEST(TableReader, ARowWithoutEndTakesNoMemoryForTheFile) {
  const std::string text = "a\n\"" + std::string(std::size_t{70} << 20, 'x');
  expect_refusal([&] { TableReader(std::make_unique<std::istringstream>(text), "f.csv").next(); },
                 "f.csv: line 2: got a row of more than 67108864 bytes");
}

}  // namespace
}  // namespace kvbench::test_table_reader
