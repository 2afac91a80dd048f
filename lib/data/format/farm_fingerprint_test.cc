#include "lib/data/format/farm_fingerprint.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace muster::farm_fingerprint_test {
namespace {

// The values are those of Debian's libfarmhash 0~git20190513, util::Fingerprint64().
TEST(FarmFingerprintTest, EqualsTheLibrary) {
  struct Case {
    size_t length;
    uint64_t fingerprint;
  };
  for (const Case& c : std::vector<Case>{{0, 11160318154034397263u},
                                         {1, 15198969275252572735u},
                                         {3, 9358251604680157649u},
                                         {4, 11595347755374171161u},
                                         {7, 11621448619717520503u},
                                         {8, 14712484696199249492u},
                                         {16, 693852947830500340u},
                                         {17, 11386464486653430600u},
                                         {32, 6586118081121109303u},
                                         {33, 14743176749037585230u},
                                         {64, 8390407093891634874u},
                                         {65, 5885159274183044158u},
                                         {128, 16109075817234698818u},
                                         {129, 12181736578373891702u},
                                         {1000, 10212706670512715928u}}) {
    std::string text;
    for (size_t i = 0; i < c.length; ++i) text.push_back("0123456789abcdef"[i * 7 % 16]);
    EXPECT_EQ(FarmFingerprint(text), c.fingerprint) << c.length;
  }
  EXPECT_EQ(FarmFingerprint("68fd1e64"), 7920289447977470598u) << "a category of Criteo's";
}

}  // namespace
}  // namespace muster::farm_fingerprint_test
