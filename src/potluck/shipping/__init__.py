"""A model that ships: a folder with weights, graph, scaling, class names and a program that runs it without Potluck."""

from potluck.shipping.bundle import ModelCard, Sample, write_bundle
from potluck.shipping.device_training import TrainingCheck, TrainingDiffers, verify_device
from potluck.shipping.figures import Figures, figures
from potluck.shipping.formats import FORMATS
from potluck.shipping.prediction import predict

__all__ = [
    "FORMATS",
    "Figures",
    "ModelCard",
    "Sample",
    "TrainingCheck",
    "TrainingDiffers",
    "figures",
    "predict",
    "verify_device",
    "write_bundle",
]
