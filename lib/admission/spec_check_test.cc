#include "lib/admission/spec_check.h"

#include <sys/resource.h>

#include <fstream>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"

namespace muster::spec_check_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class SpecCheckTest : public testing::Test {
 protected:
  SpecCheckTest() {
    std::ofstream(path_, std::ios::trunc) << "1,2\n3,4\n5,6\n";
    spec_.set_name("table");
    spec_.mutable_model()->mutable_zoo()->set_name("linear");
    v1::DataSpec& data = *spec_.mutable_data();
    data.set_batch_size(1);
    v1::CsvData& csv = *data.mutable_csv();
    csv.set_path(path_);
    for (const auto& [input, column] : {std::pair("input", "1"), {"target", "2"}}) {
      (*csv.mutable_inputs())[input].add_columns(column);
      (*csv.mutable_inputs())[input].mutable_number();
    }
    spec_.mutable_training()->set_steps(1);
    spec_.mutable_training()->mutable_optimizer()->mutable_sgd()->set_learning_rate(0.1);
  }

  const std::string path_ = absl::StrCat(testing::TempDir(), "/spec_check.csv");
  v1::JobSpec spec_;
};

TEST_F(SpecCheckTest, AGoodSpecHasNoWarnings) {
  const auto checked = CheckSpec(spec_, {});
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_THAT(checked->warnings, ElementsAre());
}

TEST_F(SpecCheckTest, DataThatAreMissingAreAFault) {
  spec_.mutable_data()->mutable_csv()->set_path(path_ + "/none");
  const absl::Status refused = CheckSpec(spec_, {}).status();
  EXPECT_EQ(ReasonOf(refused), "INVALID_SPEC");
  ASSERT_EQ(FaultsOf(refused).size(), 1u) << refused;
  EXPECT_EQ(FaultsOf(refused)[0].field, "data.csv.path");
}

TEST_F(SpecCheckTest, AModelThatTheDevicesCannotDivideIsAFault) {
  spec_.mutable_resources()->set_tensor_parallel(2);
  const absl::Status refused = CheckSpec(spec_, {}).status();
  ASSERT_EQ(FaultsOf(refused).size(), 1u) << refused;
  EXPECT_EQ(FaultsOf(refused)[0].field, "resources.tensor_parallel");
  EXPECT_THAT(FaultsOf(refused)[0].description,
              HasSubstr("the model has no part that 2 tensor-parallel devices can share"));
}

TEST_F(SpecCheckTest, StorageThatIsAwayIsAWarning) {
  // No file opens without a descriptor, as with a network volume that does not answer.
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const absl::Cleanup restore = [&] { setrlimit(RLIMIT_NOFILE, &before); };
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);

  const auto checked = CheckSpec(spec_, {});

  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_THAT(checked->warnings,
              ElementsAre(testing::AllOf(HasSubstr("data.csv.path: "), HasSubstr("too many open"),
                                         HasSubstr("; the workers alone will check the data"))));
}

}  // namespace
}  // namespace muster::spec_check_test
