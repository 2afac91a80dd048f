#include "services/coordinator/membership/member_directive.h"

#include <glog/logging.h>

namespace muster {

v1::Directive Whole(const MemberDirective& told) {
  v1::Directive directive = told.directive;
  if (told.plan != nullptr) {
    CHECK(directive.mutable_prepare()->mutable_plan()->ParseFromString(*told.plan));
  }
  return directive;
}

}  // namespace muster
