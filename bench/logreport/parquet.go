package logreport

import (
	"io"
	"math"

	"github.com/parquet-go/parquet-go"

	"github.com/troupe-llm/troupe/bench/requestlog"
)

// WriteParquet writes the rows of WriteCSV as a Parquet file, with the same columns.
func (r *Report) WriteParquet(w io.Writer) error {
	rows := r.rows()
	var columns []column
	if len(rows) > 0 {
		columns = rows[0].columns(r.By)
	} else {
		columns = (&Row{Values: make([]string, len(r.By))}).columns(r.By)
	}
	schema := parquet.Group{}
	for _, c := range columns {
		switch {
		case c.isText:
			schema[c.name] = parquet.String()
		case c.whole:
			schema[c.name] = parquet.Int(64)
		default:
			schema[c.name] = parquet.Optional(parquet.Leaf(parquet.DoubleType))
		}
	}
	// Value by value: of a map parquet-go writes 0 as null where that may be.
	groups := parquet.NewSchema("groups", schema)
	out := parquet.NewWriter(w, groups, parquet.Compression(&parquet.Zstd))
	place := map[string]int{} // the schema has them in an order of its own
	for i, path := range groups.Columns() {
		place[path[0]] = i
	}
	values := make(parquet.Row, len(place))
	for _, row := range rows {
		for _, c := range row.columns(r.By) {
			i := place[c.name]
			switch {
			case c.isText:
				values[i] = parquet.ByteArrayValue([]byte(c.text)).Level(0, 0, i)
			case c.whole:
				values[i] = parquet.Int64Value(int64(c.number)).Level(0, 0, i)
			case math.IsNaN(c.number) || math.IsInf(c.number, 0):
				values[i] = parquet.NullValue().Level(0, 0, i)
			default:
				values[i] = parquet.DoubleValue(c.number).Level(0, 1, i)
			}
		}
		if _, err := out.WriteRows([]parquet.Row{values}); err != nil {
			return err
		}
	}
	return out.Close()
}

// Request is one line as a row of a table, for Parquet. Times are milliseconds; a value that is null
// in the log is null here.
type Request struct {
	Time            string   `parquet:"time,optional"`
	ID              string   `parquet:"request_id,optional"`
	ClientID        string   `parquet:"client_request_id,optional"`
	Endpoint        string   `parquet:"endpoint,optional,dict"`
	Model           string   `parquet:"model,optional,dict"`
	Key             string   `parquet:"key,optional,dict"`
	Outcome         string   `parquet:"outcome,dict"`
	Status          int32    `parquet:"status"`
	ErrorType       string   `parquet:"error_type,optional,dict"`
	ErrorCode       string   `parquet:"error_code,optional,dict"`
	ErrorMessage    string   `parquet:"error_message,optional"`
	Stream          bool     `parquet:"stream"`
	N               int32    `parquet:"n"`
	PromptTokens    int64    `parquet:"prompt_tokens"`
	CachedTokens    int64    `parquet:"cached_tokens"`
	OutputTokens    int64    `parquet:"output_tokens"`
	DiscardedTokens int64    `parquet:"discarded_tokens"`
	TTFT            *float64 `parquet:"ttft_ms,optional"`
	Queue           *float64 `parquet:"queue_ms,optional"`
	Prefill         *float64 `parquet:"prefill_ms,optional"`
	Decode          *float64 `parquet:"decode_ms,optional"`
	ITL             *float64 `parquet:"itl_ms,optional"`
	ITLP99          *float64 `parquet:"itl_p99_ms,optional"`
	E2E             *float64 `parquet:"e2e_ms,optional"`
	Delivery        *float64 `parquet:"delivery_ms,optional"`
	Rate            *float64 `parquet:"tokens_per_second,optional"`
	Batch           *float64 `parquet:"mean_batch_size,optional"`
	Preemptions     int32    `parquet:"preemptions"`
	QueueCapacity   float64  `parquet:"slowed_by_queue_capacity_ms"`
	QueueKV         float64  `parquet:"slowed_by_queue_kv_ms"`
	PrefillOfOthers float64  `parquet:"slowed_by_prefill_of_others_ms"`
	Preemption      float64  `parquet:"slowed_by_preemption_ms"`
	DeviceRestart   float64  `parquet:"slowed_by_device_restart_ms"`
	SlowClient      float64  `parquet:"slowed_by_slow_client_ms"`
	Bytes           int64    `parquet:"bytes"`
}

// Table writes requests as rows of a Parquet file. The caller closes it.
type Table struct {
	out  *parquet.GenericWriter[Request]
	rows []Request
}

// NewTable begins a Parquet file.
func NewTable(w io.Writer) *Table {
	return &Table{out: parquet.NewGenericWriter[Request](w, parquet.Compression(&parquet.Zstd), parquet.MaxRowsPerRowGroup(100_000))}
}

// Add takes a line. Its texts are copied.
func (t *Table) Add(e *requestlog.Entry) error {
	ms := func(s requestlog.Span) *float64 {
		if !s.Known() {
			return nil
		}
		v := s.Millis()
		return &v
	}
	number := func(v float64) *float64 {
		if math.IsNaN(v) {
			return nil
		}
		return &v
	}
	s := &e.SlowedBy
	// parquet-go copies what it writes; until then the texts must stay.
	t.rows = append(t.rows[:0], Request{
		Time: e.Time, ID: e.RequestID, ClientID: e.ClientRequestID, Endpoint: e.Endpoint, Model: e.Model, Key: e.Key,
		Outcome: e.Outcome, Status: int32(e.Status), ErrorType: e.Error.Type, ErrorCode: e.Error.Code, ErrorMessage: e.Error.Message,
		Stream: e.Stream, N: int32(e.N), PromptTokens: int64(e.Tokens.Prompt), CachedTokens: int64(e.Tokens.Cached),
		OutputTokens: int64(e.Tokens.Output), DiscardedTokens: int64(e.Tokens.Discarded),
		TTFT: ms(e.Detail.ArrivalToFirstToken), Queue: ms(e.Metrics.QueueTime), Prefill: ms(e.Metrics.TimeToFirstToken), Decode: ms(e.Metrics.GenerationTime),
		ITL: ms(e.Metrics.MeanITL), ITLP99: ms(e.Detail.ITLP99), E2E: ms(endToEnd(e)), Delivery: ms(delivery(e)),
		Rate: number(e.Metrics.TokensPerSecond), Batch: number(e.Detail.MeanBatch), Preemptions: int32(e.Detail.Preemptions),
		QueueCapacity: s.QueueCapacity.Millis(), QueueKV: s.QueueKV.Millis(), PrefillOfOthers: s.PrefillOfOthers.Millis(),
		Preemption: s.Preemption.Millis(), DeviceRestart: s.DeviceRestart.Millis(), SlowClient: s.SlowClient.Millis(), Bytes: e.Bytes,
	})
	_, err := t.out.Write(t.rows)
	return err
}

// Close writes what is left and the file's end.
func (t *Table) Close() error { return t.out.Close() }
