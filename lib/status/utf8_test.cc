#include "lib/status/utf8.h"

#include "gtest/gtest.h"

namespace muster::utf8_test {
namespace {

TEST(Utf8Test, CharactersHaveOneToFourBytes) {
  EXPECT_EQ(Utf8CharacterBytes("ab"), 1);
  EXPECT_EQ(Utf8CharacterBytes("\xc3\xa4z"), 2);
  EXPECT_EQ(Utf8CharacterBytes("\xe2\x82\xac"), 3);
  EXPECT_EQ(Utf8CharacterBytes("\xf0\x9f\x98\x80"), 4);
  EXPECT_EQ(Utf8CharacterBytes("\xf4\x8f\xbf\xbf"), 4);
}

TEST(Utf8Test, OtherBytesAreNotCharacters) {
  for (const char* text : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80",
                           "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff",
                           "\xc3", "\xe2\x82", "\xe2\x82z", "\xf0\x9f\x98"}) {
    EXPECT_EQ(Utf8CharacterBytes(text), 0) << text;
  }
}

TEST(Utf8Test, InvalidBytesBecomeQuestionMarks) {
  EXPECT_EQ(ValidUtf8(""), "");
  EXPECT_EQ(ValidUtf8("\xe2\x82\xac 5"), "\xe2\x82\xac 5");
  EXPECT_EQ(ValidUtf8("cut \xe2\x82"), "cut ??");
  EXPECT_EQ(ValidUtf8("\xff\xc3\xa4\xc3"), "?\xc3\xa4?");
}

TEST(Utf8Test, ControlCharactersArePrintedAsText) {
  EXPECT_EQ(Printable(""), "");
  EXPECT_EQ(Printable("\xe2\x82\xac 5\xff, \xc3\x84\xc2\xa0"), "\xe2\x82\xac 5?, \xc3\x84\xc2\xa0");
  EXPECT_EQ(Printable("a\nb\r\t\x1b[2J\x7f"), "a\\nb\\x0d\\x09\\x1b[2J\\x7f");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "1m"),
            "\\u009b1m")
      << "some terminals treat it as ESC [";
}

}  // namespace
}  // namespace muster::utf8_test
