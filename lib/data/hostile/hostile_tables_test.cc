#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/data/hostile/hostile_file.h"
#include "lib/data/image/decode/encoded_jpeg.h"
#include "lib/data/source/image_graph.h"

namespace muster::hostile_tables_test {
namespace {

// A table of three lines, the second of which is hostile.
class HostileCsvTest : public testing::Test {
 protected:
  HostileCsvTest() {
    spec_.mutable_csv()->set_path(path_);
    v1::CsvInput& x = (*spec_.mutable_csv()->mutable_inputs())["x"];
    for (const char* column : {"a", "b"}) x.add_columns(column);
    x.mutable_number();
    target().add_columns("class");
    target().mutable_number();
  }

  v1::CsvInput& target() { return (*spec_.mutable_csv()->mutable_inputs())["target"]; }

  static std::string Table(const std::string& second) {
    return absl::StrCat("a,b,class\n1,2,3\n", second, "\n4,5,6\n");
  }
  static HostileFile Second(std::string name, const std::string& line, const std::string& part) {
    return Damaged(std::move(name), Table(line), {"record 1 at byte 16: line 3, ", part});
  }
  void ExpectOneErrorEach(const std::vector<HostileFile>& files) {
    muster::ExpectOneErrorEach(files, path_, spec_, NumbersGraph());
  }

  const std::string folder_ = EmptyFolder("hostile_csv");
  const std::string path_ = folder_ + "/a.csv";
  v1::DataSpec spec_;
};

TEST_F(HostileCsvTest, Lines) {
  const std::string nul(1, '\0');
  ExpectOneErrorEach({
      Second("a missing column", "1,2", "2 fields, but there are 3 columns"),
      Second("an extra column", "1,2,3,4", "4 fields, but there are 3 columns"),
      Second("a million columns", std::string(1'000'000, ','), "1000001 fields"),
      Second("text for a number", "1,cat,3", "column 2 'b': 'cat' is no number"),
      Second("no finite number", "nan,2,3", "column 1 'a': 'nan' is no number"),
      Second("a hexadecimal number", "0x10,2,3", "'0x10' is no number"),
      Second("a number of 2^4000", "1e1204,2,3", "'1e1204' is no number"),
      Second("a number above f32", "1e300,2,3", "1e+300 is too large"),
      Second("a number of 100,000 digits", std::string(100'000, '9') + ",2,3", "is no number"),
      Second("NUL", "1,2" + nul + ",3", "'2\\000' is no number"),
      Second("bytes that are no UTF-8", "1,\xff\xfe,3", "is no number"),
      Second("a class above the range", "1,2,10", "column 3 'class': 10; the model takes 0 to 9"),
      Second("a negative class", "1,2,-1", "-1; the model takes 0 to 9"),
      Second("a class with a fraction", "1,2,3.5", "3.5; the model takes 0 to 9"),
      Second("a class of 2^70", "1,2,1180591620717411303424", "the model takes 0 to 9"),
      Second("text behind a quote", "\"1\"x,2,3", "text follows a closing quote"),
      Second("an old Macintosh's line end", "1,2,3\r4,5,6", "5 fields"),
      Damaged("an open quote", Table("\"1,2,3"), {"record 1 at byte 16: a quote is not closed"}),
      Damaged("a line of 17 MiB", Table("1,2," + std::string(17 << 20, '3')),
              {"record 1 at byte 16: a line of more than 16777216 bytes"}),
      TooSmall("no line", "", {"has no line"}),
      Invalid("gzip", "\x1f\x8b\x08 and more bytes", {"is compressed with gzip"}),
      Invalid("a header of 70,001 columns", std::string(70'000, ',') + "\n",
              {"70001 columns, at most 65536"}),
      Damaged("a header with an open quote", "\"a,b,class\n1,2,3\n", {"at byte 0"}),
  });
}

TEST_F(HostileCsvTest, Columns) {
  WriteFile(path_, "a,b,c\n1,2,3\n");
  const auto errors = ErrorsOf(spec_, NumbersGraph());
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].message(),
            "data.csv.inputs.target.columns: no column has the name 'class'; there are 'a', 'b', "
            "'c'");
  WriteFile(path_, Table("7,8,9"));
  spec_.mutable_csv()->set_path(folder_ + "/*.csv");
  const std::string second = folder_ + "/b.csv";
  muster::ExpectOneErrorEach(
      {Invalid("another header", "b,a,class\n1,2,3\n", {"its header differs from the first"}),
       Damaged("a header with text behind a quote", "\"a\"x,b,class\n",
               {"at byte 0: text follows"})},
      second, spec_, NumbersGraph());
}

TEST_F(HostileCsvTest, Vocabularies) {
  const std::string words = folder_ + "/words";
  target().mutable_vocabulary()->set_path(words);
  WriteFile(words, "cat\ndog\n");
  const auto table = [](const std::string& second) {
    return absl::StrCat("a,b,class\n1,2,cat\n1,2,", second, "\n1,2,dog\n");
  };
  const auto unknown = [&](const char* name, const std::string& word, const std::string& part) {
    return Damaged(name, table(word), {"record 1 at byte 18: line 3, column 3 'class': ", part});
  };
  ExpectOneErrorEach({
      unknown("an unknown word", "bird", "'bird' is not in the vocabulary"),
      unknown("no word", "", "'' is not in the vocabulary"),
      unknown("a word that is no UTF-8", "\xff\xfe", "is not in the vocabulary"),
      unknown("a word of a megabyte", std::string(1'000'000, 'x'), "is not in the vocabulary"),
  });
  WriteFile(path_, table("cat"));
  muster::ExpectOneErrorEach(
      {Invalid("a word twice", "cat\ndog\ncat\n", {"line 3: 'cat' is twice in the vocabulary"}),
       Invalid("more words than classes", "cat\ndog\n1\n2\n3\n4\n5\n6\n7\n8\n9\n",
               {"11 lines give ids up to 10"}),
       Invalid("gzip", "\x1f\x8b\x08 and more bytes", {"is compressed with gzip"})},
      words, spec_, NumbersGraph());
}

// A list of images.
class HostileListTest : public testing::Test {
 protected:
  HostileListTest() {
    spec_.mutable_images()->set_list(path_);
    v1::Resize& resize = *spec_.mutable_image()->add_train()->mutable_resize();
    resize.set_height(2);
    resize.set_width(2);
    WriteFile(folder_ + "/a.jpg",
              EncodeJpeg(TestPicture(32, 24, 3, 1), {.width = 32, .height = 24}));
  }

  const std::string folder_ = EmptyFolder("hostile_list");
  const std::string path_ = folder_ + "/list.txt";
  v1::DataSpec spec_;
};

TEST_F(HostileListTest, Lines) {
  const auto second = [](const char* name, const std::string& line, const std::string& part) {
    return Invalid(name, absl::StrCat("a.jpg 3\n", line, "\na.jpg 4\n"), {"line 2 " + part});
  };
  ExpectOneErrorEach(
      {second("no class", "a.jpg", "has no class"), second("no path", " , 3", "has no path"),
       second("a class that is text", "a.jpg cat", "has the class 'cat', which is no number"),
       second("a class of 2^40", "a.jpg 1099511627776", "has the class '1099511627776'"),
       second("a negative class", "a.jpg -1", "has the class -1, which is below 0"),
       second("a class that is no UTF-8", "a.jpg \xff", "has the class '\\xff'"),
       Invalid("a class above the range", "a.jpg 3\na.jpg 10\n",
               {"line 2 has the class 10; the model takes 0 to 9"}),
       Invalid("a line of 3 MiB", "a.jpg 3\n" + std::string(3 << 20, 'x'),
               {"line 2 is longer than 1048576 bytes"}),
       TooSmall("no line", "\n\n", {"names no image"})},
      path_, spec_, ImageGraph(/*classes=*/10));
}

TEST_F(HostileListTest, FilesThatAreMissing) {
  for (const std::string lines : {"none.jpg 3\na.jpg 4\n", "a.jpg 3\nnone.jpg 4\na.jpg 5\n"}) {
    WriteFile(path_, lines);
    ExpectOneError({lines,
                    "",
                    {"data.images.list: ", "no such file"},
                    "DATA_NOT_FOUND",
                    absl::StatusCode::kNotFound},
                   folder_ + "/none.jpg",
                   [&] { return ErrorsOf(spec_, ImageGraph(/*classes=*/10)); });
  }
}

}  // namespace
}  // namespace muster::hostile_tables_test
