#include "server/service.h"

#include <algorithm>
#include <chrono>

namespace longspan::server {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kTick{100};             // how often a silent request is looked at
constexpr Milliseconds kPeerCheckPeriod{200};  // how often the client's side is looked at
constexpr int kClientClosedRequest = 499;

// Asks the peer whether it is gone, but not at every token.
class PeerWatch {
 public:
  explicit PeerWatch(const HttpPeer* peer) : peer_(peer) {}
  bool gone() {
    const auto now = engine::Clock::now();
    if (!peer_ || now - last_ < kPeerCheckPeriod) return false;
    last_ = now;
    return peer_->gone();
  }

 private:
  const HttpPeer* peer_;
  engine::Clock::time_point last_ = engine::Clock::now();
};

// Dropping the request cancels it.
WireError late_error() {
  return {.status = 408,
          .type = error_type(408),
          .code = "request_timeout",
          .message = "the answer took longer than this server's request_timeout_seconds"};
}

WireError engine_error(const std::string& message) {
  return {.status = 500, .type = error_type(500), .message = message};
}

void run_stream(RunningRequest& running, const HttpPeer* peer, double keepalive_seconds,
                const StreamFormat& format, BodyWriter& writer) {
  const std::chrono::duration<double> keepalive(keepalive_seconds);
  const bool comments = keepalive_seconds > 0;
  PeerWatch watch(peer);
  int64_t shown_progress = -1;
  auto last_write = engine::Clock::now();
  const auto send = [&](const std::string& text) {
    if (!text.empty()) last_write = engine::Clock::now();
    return writer.write(text);
  };
  if (format.begin ? !send(format.begin()) : comments && !send(format.keep_alive)) return;
  while (!running.done()) {
    std::string out;
    for (const ChoiceUpdate& news : running.next(kTick)) {
      if (news.finish && news.finish->reason == FinishReason::kError) {
        send(out + format.error(engine_error(news.finish->error)));
        return;  // drops the other choices
      }
      out += format.update(news, running.usage());
    }
    if (running.late()) {
      send(out + format.error(late_error()));
      return;
    }
    const PrefillProgress progress = running.progress();
    if (format.progress && progress.processed > shown_progress && !running.has_token()) {
      shown_progress = progress.processed;
      out += format.progress(progress);
    }
    if (out.empty() && comments && engine::Clock::now() - last_write >= keepalive) out = format.keep_alive;
    if (!send(out) || watch.gone()) return;
  }
  send(format.end(running.usage()));
}

}  // namespace

std::string Service::resolve_model(const std::optional<std::string>& asked) const {
  if (!asked) return model_name();
  const auto& names = options.model_names;
  if (std::find(names.begin(), names.end(), *asked) != names.end()) return *asked;
  if (!options.strict_model_name) return model_name();
  throw WireError{.status = 404,
                  .type = error_type(404),
                  .code = "model_not_found",
                  .param = "model",
                  .message = fmt::format("model: got '{}', this server has '{}'", *asked, model_name())};
}

std::shared_ptr<RunningRequest> start_generation(Service& service, const HttpRequest& origin,
                                                 const GenerationRequest& request,
                                                 const std::string& prompt_field) {
  if (service.draining) {
    service.metrics.record_refusal();
    throw WireError{.status = 503, .type = error_type(503), .message = "the server is shutting down"};
  }
  const int64_t limit = service.engine.info().max_model_len;
  for (const std::vector<int32_t>& prompt : request.prompts) {
    const auto size = static_cast<int64_t>(prompt.size());
    if (size == 0) fail_field(prompt_field, "the prompt is empty: need at least one token");
    if (size < limit) continue;
    throw WireError{
        .code = "context_length_exceeded",
        .param = prompt_field,
        .message = fmt::format("This model's maximum context length is {} tokens. However, you requested "
                               "{} tokens in the {}, and an answer needs at least one more.",
                               limit, size, prompt_field)};
  }
  try {
    return std::make_shared<RunningRequest>(
        service.running, service.metrics,
        RunningRequest::Origin{.id = origin.id,
                               .route = origin.path,
                               .arrived = origin.arrived,
                               .log_end = service.options.log_requests,
                               .timeout_seconds = service.options.request_timeout_seconds},
        service.engine, service.tokenizer, request);
  } catch (const Error& error) {
    if (error.kind == ErrorKind::kExhausted) service.metrics.record_refusal();
    throw;
  }
}

std::vector<Answer> collect(RunningRequest& running, size_t num_choices, const HttpPeer* peer) {
  std::vector<Answer> answers(num_choices);
  PeerWatch watch(peer);
  while (!running.done()) {
    for (ChoiceUpdate& news : running.next(kTick)) {
      Answer& answer = answers[static_cast<size_t>(news.index)];
      answer.text.reasoning += news.delta.reasoning;
      answer.text.content += news.delta.content;
      std::move(news.delta.calls.begin(), news.delta.calls.end(), std::back_inserter(answer.text.calls));
      std::move(news.tokens.begin(), news.tokens.end(), std::back_inserter(answer.tokens));
      if (!news.finish) continue;
      answer.finish = *std::move(news.finish);
      if (answer.finish.reason == FinishReason::kError) throw engine_error(answer.finish.error);
      if (answer.finish.reason == FinishReason::kCancelled)
        throw WireError{.status = 409, .code = "cancelled", .message = "the request was cancelled"};
    }
    if (running.late()) throw late_error();
    if (watch.gone())
      throw WireError{.status = kClientClosedRequest, .message = "the client closed the connection"};
  }
  return answers;
}

std::string sse_data(const std::string& json) { return "data: " + json + "\n\n"; }

HttpResponse stream_response(std::shared_ptr<RunningRequest> running, const HttpPeer* peer,
                             double keepalive_seconds, StreamFormat format) {
  HttpResponse response{.content_type = "text/event-stream; charset=utf-8"};
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");
  response.stream = [running = std::move(running), peer, keepalive_seconds,
                     format = std::move(format)](BodyWriter& writer) {
    run_stream(*running, peer, keepalive_seconds, format, writer);
  };
  return response;
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace longspan::server
