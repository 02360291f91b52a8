"""Every function of `weft.api`, with the types that they take and return."""

from __future__ import annotations

from weft.analysis.capabilities import Diagnosis, doctor
from weft.analysis.cost_plan import Plan
from weft.analysis.describe import describe
from weft.analysis.known_parts import catalogue
from weft.api.benchmarking import benchmark, compared_by_request, is_benchmark, rate
from weft.api.configs import config_path, config_schema, presets, read_model, read_run
from weft.api.data import data_inspect, data_mixture, data_prepare, data_sample, data_sources
from weft.api.drawing import Text, draw, pictures
from weft.api.examining import check, plan
from weft.api.generating import Ends, beam_search, decoding_defaults, generate, prompt_rows, stream, task_kind
from weft.api.inside_views import Insides, insides
from weft.api.judging import verdict, verdict_against
from weft.api.models import Model, convert, families, load, load_language_model, require_device, require_dtype, save
from weft.api.predicting import Predicted, predict
from weft.api.prediction_kinds import PredictionSettings
from weft.api.rows import row_kinds
from weft.api.training import compare, compare_ladder, compare_report, extend, train
from weft.api.translating import Search, Translated, measure_bleu, search_defaults, translate
from weft.api.using import classify, evaluate, measure, mixes, resize_images, run_of, score
from weft.chat.conversation import ChatSettings, Conversation
from weft.checkpoints import Loaded
from weft.comparison.ratings import BradleyTerry, Elo, GameFields, Ratings, Resampling
from weft.core.errors import UserError
from weft.core.probes import probe
from weft.core.registry import load_plugin
from weft.decoding import Row, Sampling
from weft.extending.extend import Measuring
from weft.index.records import Description, Entry
from weft.interop.arpa.convert import is_arpa
from weft.tasks.answers import Answer

__all__ = ["Answer", "BradleyTerry", "ChatSettings", "Conversation", "Description", "Diagnosis", "Elo", "Ends", "Entry",
           "GameFields", "Insides", "Loaded", "Measuring", "Model", "Plan", "Predicted", "PredictionSettings",
           "Ratings", "Resampling", "Row", "Sampling", "Search", "Text", "Translated", "UserError", "beam_search",
           "benchmark", "catalogue", "check", "classify", "compare", "compare_ladder", "compare_report",
           "compared_by_request", "config_path", "config_schema", "convert", "data_inspect", "data_mixture",
           "data_prepare", "data_sample", "data_sources", "decoding_defaults", "describe", "doctor", "draw", "evaluate",
           "extend", "families", "generate", "insides", "is_arpa", "is_benchmark", "load", "load_language_model",
           "load_plugin", "measure", "measure_bleu", "mixes", "pictures", "plan", "predict", "presets", "probe",
           "prompt_rows", "rate", "read_model", "read_run", "require_device", "require_dtype", "resize_images",
           "row_kinds", "run_of", "save", "score", "search_defaults", "stream", "task_kind", "train", "translate",
           "verdict", "verdict_against"]
