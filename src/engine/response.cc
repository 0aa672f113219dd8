#include "engine/response.h"

namespace longspan::engine {

void ResponseState::reserve(int64_t max_new_tokens) {
  const std::lock_guard lock(mutex_);
  tokens_.reserve(static_cast<size_t>(max_new_tokens));
}

void ResponseState::start(Clock::time_point time) {
  {
    const std::lock_guard lock(mutex_);
    if (started_) return;
    started_ = time;
    progressed_ = true;
  }
  changed_.notify_one();
  if (on_change) on_change();
}

void ResponseState::push(TokenOutput token) {
  {
    const std::lock_guard lock(mutex_);
    tokens_.push_back(std::move(token));
  }
  changed_.notify_one();
  if (on_change) on_change();
}

void ResponseState::progress(int64_t num_prefilled, int64_t num_cached) {
  {
    const std::lock_guard lock(mutex_);
    num_prefilled_ = num_prefilled;
    num_cached_ = num_cached;
    progressed_ = true;
  }
  changed_.notify_one();
  if (on_change) on_change();
}

void ResponseState::finish(FinishReason reason, int32_t stop_token, std::string error) {
  {
    const std::lock_guard lock(mutex_);
    if (done_) return;
    done_ = true;
    reason_ = reason;
    stop_token_ = stop_token;
    error_ = std::move(error);
  }
  changed_.notify_one();
  if (on_change) on_change();
}

ResponseUpdate ResponseState::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return num_taken_ < tokens_.size() || progressed_ || done_; });
  ResponseUpdate update{.num_prefilled = num_prefilled_,
                        .num_cached = num_cached_,
                        .started = started_,
                        .done = done_,
                        .reason = reason_,
                        .stop_token = stop_token_,
                        .error = error_};
  update.tokens.assign(std::make_move_iterator(tokens_.begin() + static_cast<std::ptrdiff_t>(num_taken_)),
                       std::make_move_iterator(tokens_.end()));
  num_taken_ = tokens_.size();
  progressed_ = false;
  return update;
}

Response& Response::operator=(Response&& other) noexcept {
  if (this != &other) {
    drop();
    id_ = other.id_;
    state_ = std::move(other.state_);
    cancel_ = std::move(other.cancel_);
  }
  return *this;
}

void Response::drop() {
  if (state_ && cancel_) cancel_(id_);
  state_.reset();
}

}  // namespace longspan::engine
